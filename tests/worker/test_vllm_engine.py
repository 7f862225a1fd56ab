"""The real engine behind a real worker process, on the tiny model. One engine for the file, which dies at its end."""

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer

from apps.deployments.prompt_rendering import build_renderer
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import ModelAssets, WorkerInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.messages import (
    ChatTurn,
    FinishReason,
    StreamState,
    StructuredOutput,
)
from headrace_wire.redis_client import connect
from tests.support.processes import Process
from tests.support.snapshots import publish_snapshot, snapshot
from tests.worker.conftest import (
    ENGINE_START_SECONDS,
    EngineWorker,
    engine_children,
    engine_deployment,
    start_engine_worker,
)
from tests.worker.desk import Answer, Desk

pytestmark = pytest.mark.engine

HELLO = [ChatTurn("user", "Hello")]
LONG = " ".join(f"word{i}" for i in range(400))


async def ask(desk: Desk, prompt: str | list[ChatTurn] | list[int] = HELLO, **sampling: object) -> Answer:
    stream_id = await admit(desk, prompt, **sampling)
    answer = await desk.answer(stream_id)
    answer.check_order()
    return answer


async def admit(desk: Desk, prompt: str | list[ChatTurn] | list[int] = HELLO, **sampling: object) -> str:
    fields: dict[str, object] = {"temperature": 0.0, "ignore_eos": True, **sampling}
    return await desk.admit(prompt, deployment="tiny", **fields)  # type: ignore[arg-type]


async def idle(desk: Desk) -> None:
    """Wait until the engine itself says that it runs nothing."""
    await desk.worker_that(lambda info: info.num_requests_running + info.num_requests_waiting == 0)


# ---- text and usage


async def test_greedy_answers_are_the_same_alone_and_together(engine_desk: Desk) -> None:
    alone = await ask(engine_desk, max_tokens=60)
    ids = [await admit(engine_desk, max_tokens=60) for _ in range(8)]
    together = [await engine_desk.answer(stream_id) for stream_id in ids]
    assert {answer.text for answer in together} == {alone.text}
    assert alone.end.finish_reason is FinishReason.LENGTH
    assert alone.end.usage.completion_tokens == 60


async def test_text_is_what_the_ids_say(engine_desk: Desk, tiny_model: Path) -> None:
    """Random weights at temperature 1 give every kind of token: broken bytes, special tokens, all scripts."""
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    for seed in range(5):
        stream_id = await admit(engine_desk, max_tokens=200, temperature=1.0, seed=seed)
        answer = await engine_desk.answer(stream_id)
        ids = await engine_desk.log.token_ids(stream_id)
        assert len(ids) == answer.end.usage.completion_tokens == 200
        assert answer.text == tokenizer.decode(ids, skip_special_tokens=True)


async def test_a_seed_repeats_an_answer(engine_desk: Desk) -> None:
    first, again = [await ask(engine_desk, max_tokens=40, temperature=1.0, seed=7) for _ in range(2)]
    other = await ask(engine_desk, max_tokens=40, temperature=1.0, seed=8)
    assert first.text == again.text != other.text


async def test_usage_is_the_engines_count(engine_desk: Desk, engine_worker: EngineWorker) -> None:
    """Also when the client leaves early."""
    before = engine_worker.metric("vllm:generation_tokens_total")
    prompt_before = engine_worker.metric("vllm:prompt_tokens_total")
    finished = await ask(engine_desk, "One two three", max_tokens=33)
    left = await admit(engine_desk, "Four five six", max_tokens=1500)
    await engine_desk.first_token(left)
    await engine_desk.cancel(left)
    cancelled = await engine_desk.answer(left)
    await idle(engine_desk)
    generated = finished.end.usage.completion_tokens + cancelled.end.usage.completion_tokens
    assert engine_worker.metric("vllm:generation_tokens_total") - before == generated
    prompts = finished.end.usage.prompt_tokens + cancelled.end.usage.prompt_tokens
    assert engine_worker.metric("vllm:prompt_tokens_total") - prompt_before == prompts
    assert engine_worker.metric("headrace_worker_tokens_total") > 0
    assert cancelled.end.usage.completion_tokens == len(await engine_desk.log.token_ids(left))


async def test_prefix_cache_is_partitioned_by_salt(engine_desk: Desk) -> None:
    cold = await ask(engine_desk, LONG, cache_salt="salt-a", max_tokens=4)
    warm = await ask(engine_desk, LONG, cache_salt="salt-a", max_tokens=4)
    foreign = await ask(engine_desk, LONG, cache_salt="salt-b", max_tokens=4)
    assert cold.end.usage.cached_tokens == foreign.end.usage.cached_tokens == 0
    assert warm.end.usage.cached_tokens > 1000
    assert cold.text == warm.text == foreign.text


async def test_gateways_can_render_as_the_engine_does(engine_desk: Desk) -> None:
    info = await engine_desk.worker_in(WorkerState.READY)
    raw: Reply = await engine_desk.redis.get(redis_keys.model_assets_key(info.fingerprint))
    renderer = build_renderer(codec.decode(raw, ModelAssets))
    assert renderer is not None
    here = await ask(engine_desk, renderer.render(HELLO), max_tokens=20)
    there = await ask(engine_desk, HELLO, max_tokens=20)
    assert here.text == there.text
    assert here.end.usage.prompt_tokens == there.end.usage.prompt_tokens


# ---- stops and constraints


async def test_stop_string_stops_the_engine(engine_desk: Desk) -> None:
    whole = await ask(engine_desk, max_tokens=60)
    stop = whole.text[len(whole.text) // 2 :][:6]
    answer = await ask(engine_desk, max_tokens=1500, stop=(stop,))
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert (answer.end.finish_reason, answer.end.stop_reason) == (FinishReason.STOP, stop)
    assert answer.end.usage.completion_tokens <= 60
    await idle(engine_desk)


async def test_stop_token(engine_desk: Desk) -> None:
    stream_id = await admit(engine_desk, max_tokens=20)
    await engine_desk.answer(stream_id)
    ids = await engine_desk.log.token_ids(stream_id)
    answer = await ask(engine_desk, max_tokens=20, stop_token_ids=(ids[7],))
    assert answer.end.stop_reason == ids[7]
    assert answer.end.usage.completion_tokens == ids.index(ids[7]) + 1


async def test_structured_outputs(engine_desk: Desk) -> None:
    choice = await ask(
        engine_desk, max_tokens=30, ignore_eos=False, structured=StructuredOutput(choice=("river", "mill"))
    )
    assert choice.text in {"river", "mill"}
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})
    constrained = StructuredOutput(json_schema=schema)
    answer = await ask(engine_desk, max_tokens=30, ignore_eos=False, structured=constrained)
    assert isinstance(json.loads(answer.text)["a"], bool)
    assert answer.end.finish_reason is FinishReason.STOP


async def test_a_grammar_that_takes_longer_than_a_lease_holds_up_nobody(
    engine_desk: Desk, engine_worker: EngineWorker
) -> None:
    """Gateways refuse this one, which takes 6 s on two slow cores. One that is cancelled meanwhile is not generated."""
    slow = StructuredOutput(json_schema='{"type": "string", "pattern": "(a{1,10000}){1,10000}"}')
    quick = StructuredOutput(choice=("river", "mill"))
    await idle(engine_desk)
    before = engine_worker.metric("vllm:generation_tokens_total")
    other = await admit(engine_desk, max_tokens=1500)
    start = (await engine_desk.first_token(other))[0:2]
    cancelled = await admit(engine_desk, structured=slow, max_tokens=1900, ttft_timeout_seconds=600.0)
    await engine_desk.record_that(cancelled, lambda record: record.state is StreamState.RUNNING)
    behind = await admit(engine_desk, structured=quick, ignore_eos=False, ttft_timeout_seconds=600.0)
    await engine_desk.cancel(cancelled)
    assert (await engine_desk.answer(cancelled)).end.state is StreamState.CANCELLED
    answers = [await engine_desk.answer(stream_id, seconds=600.0) for stream_id in (other, behind)]
    for answer in answers:
        answer.check_order(owners=1)
    assert answers[0].entries[0:2] == start
    assert answers[0].starts[0].owner == answers[1].starts[0].owner
    assert answers[0].end.usage.completion_tokens == 1500
    assert answers[1].text in {"river", "mill"}
    await idle(engine_desk)
    generated = sum(answer.end.usage.completion_tokens for answer in answers)
    assert engine_worker.metric("vllm:generation_tokens_total") - before == generated


# ---- refusals


@pytest.mark.parametrize(
    ("sampling", "param", "words"),
    [
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "min_tokens"),
        ({"temperature": -1.0}, "temperature", "temperature"),
        ({"logit_bias": {10_000_000: 1.0}}, "logit_bias", "10000000"),
        ({"structured": StructuredOutput(regex='(["')}, "response_format", "regex"),
        ({"structured": StructuredOutput(json_schema='{"type": "nosuch"}')}, "response_format", "rammar"),
    ],
)
async def test_bad_parameters_are_refused_in_vllms_words(
    engine_desk: Desk, sampling: dict[str, object], param: str, words: str
) -> None:
    answer = await ask(engine_desk, HELLO, **sampling)
    assert answer.end.state is StreamState.FAILED
    assert answer.end.error is not None
    assert (answer.end.error.code, answer.end.error.param) == ("invalid_request_error", param)
    assert words in answer.end.error.message


async def test_requests_that_fail_by_themselves_end_no_engine(engine_desk: Desk, engine_worker: EngineWorker) -> None:
    """More of them than a worker looks back on. What it does with a suspect is in `test_healing`."""
    before = (engine_worker.engine_pids(), await ask(engine_desk, max_tokens=20))
    endless = StructuredOutput(json_schema='{"anyOf": [{"$ref": "#"}]}')
    streams = [await admit(engine_desk, structured=endless, max_tokens=20) for _ in range(25)]
    errors = {(await engine_desk.answer(stream_id)).end.error for stream_id in streams}
    assert [(error.code, error.param) for error in errors if error] == [("invalid_request_error", "response_format")]
    after = await ask(engine_desk, max_tokens=20)
    assert (engine_worker.engine_pids(), after.text) == (before[0], before[1].text)
    assert after.starts[-1].owner == before[1].starts[-1].owner
    for told in ("the engine is well", "engine failed (ejected)"):
        assert told not in engine_worker.process.log


async def test_bad_prompts_are_refused(engine_desk: Desk) -> None:
    too_long = await ask(engine_desk, [5] * 2048)
    text_too_long = await ask(engine_desk, LONG * 4)
    unknown_token = await ask(engine_desk, [10_000_000])
    codes = [answer.end.error and answer.end.error.code for answer in (too_long, text_too_long, unknown_token)]
    assert codes == ["context_length_exceeded", "context_length_exceeded", "invalid_request_error"]
    assert (await ask(engine_desk, [5] * 2047, max_tokens=9)).end.usage.completion_tokens == 1


# ---- cancel


async def test_cancel_stops_the_engine(engine_desk: Desk, engine_worker: EngineWorker) -> None:
    before = engine_worker.metric("vllm:generation_tokens_total")
    ids = [await admit(engine_desk, max_tokens=1900) for _ in range(8)]
    for stream_id in ids:
        await engine_desk.first_token(stream_id)
    await asyncio.gather(*(engine_desk.cancel(stream_id) for stream_id in ids))
    for stream_id in ids:
        answer = await engine_desk.answer(stream_id)
        assert (answer.end.state, answer.end.finish_reason) == (StreamState.CANCELLED, FinishReason.ABORT)
    await idle(engine_desk)
    assert engine_worker.metric("vllm:generation_tokens_total") - before < 8 * 1900


async def test_cancel_in_prefill_and_in_the_queue(engine_desk: Desk) -> None:
    ids = [await admit(engine_desk, list(range(100 + i, 2000 + i)), max_tokens=100) for i in range(12)]
    await asyncio.gather(*(engine_desk.cancel(stream_id) for stream_id in ids[:8]))
    ends = [(await engine_desk.answer(stream_id)).end for stream_id in ids[8:]]
    assert {end.state for end in ends} == {StreamState.FINISHED}
    await idle(engine_desk)


# ---- the engine's life; from here on each test leaves the engine as the next one needs it


async def test_a_killed_worker_leaves_no_engine(engine_desk: Desk, engine_worker: EngineWorker) -> None:
    engines = engine_worker.engine_pids()
    assert engines
    engine_worker.process.send_signal(signal.SIGKILL)
    engine_worker.process.wait()
    await gone(engines)


async def test_a_worker_killed_while_its_engine_starts_leaves_none(engine_redis_url: str) -> None:
    process = start_engine_worker(engine_redis_url)
    try:
        engines = await appeared(process)
        process.send_signal(signal.SIGKILL)
        await gone(engines)
    finally:
        process.stop()


async def test_refused_arguments_a_death_while_idle_and_the_end_of_a_start(
    engine_redis_url: str, tiny_model: Path
) -> None:
    """Refused by the configuration, refused by EngineCore, mended; killed while idle; ended while it starts again."""
    redis = connect(engine_redis_url)
    desk = Desk(redis)
    unknown = engine_deployment(tiny_model, engine_args={"kv_cache_dtype": "nosuch"})
    stored: Reply = await redis.hget(redis_keys.snapshot_key(), "version")  # other tests use this Redis, too
    version = int(stored or 0)
    await publish_snapshot(redis, snapshot(version + 1, unknown))
    with start_engine_worker(engine_redis_url) as process:
        info = await registered(desk, process, WorkerState.BROKEN)
        assert "Input should be 'auto'" in info.last_error

        few_blocks = engine_deployment(tiny_model, engine_args={"num_gpu_blocks_override": 2})
        await publish_snapshot(redis, snapshot(version + 2, few_blocks))
        await registered(desk, process, WorkerState.LOADING)
        info = await registered(desk, process, WorkerState.BROKEN)
        assert "KV cache" in info.last_error

        await publish_snapshot(redis, snapshot(version + 3, engine_deployment(tiny_model)))
        answer = await desk.answer(await admit(desk), seconds=ENGINE_START_SECONDS)
        assert answer.end.state is StreamState.FINISHED

        (engine,) = engine_children(process.pid)
        os.kill(engine, signal.SIGKILL)
        await registered(desk, process, WorkerState.LOADING)
        await gone([engine])
        engines = await appeared(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    await gone(engines)
    await redis.aclose()


async def registered(desk: Desk, process: Process, state: WorkerState) -> WorkerInfo:
    return await desk.worker_that(
        lambda info: info.pid == process.pid and info.state is state, seconds=ENGINE_START_SECONDS
    )


async def appeared(process: Process) -> list[int]:
    """Wait for an engine child, which is then at the beginning of its imports."""
    async with asyncio.timeout(60):
        while not (engines := engine_children(process.pid)):  # noqa: ASYNC110  the kernel tells nobody
            await asyncio.sleep(0.02)
    return engines


async def gone(pids: list[int]) -> None:
    def live(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    async with asyncio.timeout(60):
        while any(live(pid) for pid in pids):  # noqa: ASYNC110  the kernel tells nobody
            await asyncio.sleep(0.02)
