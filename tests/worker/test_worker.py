"""The whole worker with the simulated engine, from an admitted stream to its settled end."""

import asyncio
from pathlib import Path

import pytest

from headrace_wire import codec, redis_keys
from headrace_wire.cancel_reasons import BY_OPERATOR
from headrace_wire.fleet import ModelAssets, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.messages import (
    ChatTurn,
    Credit,
    Delta,
    Ended,
    FinishReason,
    Opened,
    Started,
    StreamState,
    WarmUp,
)
from headrace_worker.simulated_tokenizer import built_in_tokenizer
from tests.support.snapshots import publish_snapshot, simulated, snapshot
from tests.worker.conftest import RunWorker
from tests.worker.desk import GATEWAY, Desk
from tests.worker.engines import simulated_process
from tests.worker.jammed_engine import Jam, JammedEngine
from tests.worker.redis_proxy import RedisProxy

SLOW = {"ttft_ms": 5, "tpot_ms": 20}


async def test_stream_from_claim_to_settlement(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker():
        stream_id = await desk.admit("Hello there", max_tokens=20)
        answer = await desk.answer(stream_id)
    answer.check_order()
    assert isinstance(answer.entries[0], Opened)
    started = answer.entries[1]
    assert isinstance(started, Started)
    assert started.attempt == 1
    assert answer.end.state is StreamState.FINISHED
    assert answer.end.finish_reason is FinishReason.LENGTH
    assert answer.end.usage.prompt_tokens == len("Hello there")
    assert answer.end.usage.completion_tokens == 20
    ids = await desk.log.token_ids(stream_id)
    assert built_in_tokenizer().decode(ids) == answer.text
    record = await desk.queue.record(stream_id)
    assert record is not None
    assert record.state is StreamState.FINISHED
    delivered = await desk.delivered()
    assert [codec.encode(entry) for entry in delivered] == [codec.encode(entry) for entry in answer.entries[1:]]
    assert isinstance(delivered[-1], Ended)


async def test_the_same_prompt_has_the_same_answer(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker():
        first = await desk.answer(await desk.admit("A prompt", max_tokens=30))
        second = await desk.answer(await desk.admit("A prompt", max_tokens=30))
        other = await desk.answer(await desk.admit("Another", max_tokens=30))
    assert first.text == second.text != other.text


@pytest.mark.parametrize(
    "text", ["👩‍👩‍👧‍👦 🇨🇭 👍🏽", "สวัสดีครับ ยินดีต้อนรับ", "你好世界 日本語 한국어", "e\u0301\u200b\u00a0"]
)
async def test_text_arrives_byte_exact(desk: Desk, run_worker: RunWorker, text: str) -> None:
    async with run_worker(simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 1, "answer": text})):
        answer = await desk.answer(await desk.admit(max_tokens=500))
    assert answer.text == text
    assert answer.end.finish_reason is FinishReason.STOP
    assert answer.end.usage.completion_tokens == len(text.encode()) + 1
    assert all("\N{REPLACEMENT CHARACTER}" not in delta.text for delta in answer.deltas)


async def test_conversation_is_rendered_here(desk: Desk, run_worker: RunWorker) -> None:
    turns = [ChatTurn("system", "Be brief."), ChatTurn("user", "Hello")]
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    ids = built_in_tokenizer().encode(rendered, add_special_tokens=False).ids
    async with run_worker():
        here = await desk.answer(await desk.admit(turns, max_tokens=20))
        there = await desk.answer(await desk.admit(ids, max_tokens=20))
    assert here.end.usage.prompt_tokens == len(ids)
    assert here.text == there.text


async def test_stop_string(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args={"tpot_ms": 1, "answer": "one STOP two"})):
        answer = await desk.answer(await desk.admit(max_tokens=500, stop=("STOP",)))
        await desk.worker_that(lambda info: info.num_requests_running == 0)
    assert answer.text == "one "
    assert (answer.end.finish_reason, answer.end.stop_reason) == (FinishReason.STOP, "STOP")
    assert answer.end.usage.completion_tokens == len("one STOP")


async def test_more_streams_than_slots_take_turns(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", max_num_seqs=4)):
        ids = [await desk.admit([1, i], max_tokens=10) for i in range(20)]
        answers = [await desk.answer(stream_id) for stream_id in ids]
    for answer in answers:
        answer.check_order()
        assert answer.end.usage.completion_tokens == 10


async def test_batch_max_bounds_what_is_claimed(desk: Desk, run_worker: RunWorker) -> None:
    slow = simulated("sim", engine_args=SLOW, batch_max=2)
    async with run_worker(slow):
        ids = [await desk.admit([1, i], max_tokens=2000) for i in range(4)]
        await desk.first_token(ids[1])
        assert await desk.redis.scard(redis_keys.waiting_key("sim")) == 2
        await publish_snapshot(desk.redis, snapshot(2, simulated("sim", engine_args=SLOW, batch_max=3)))
        await desk.first_token(ids[2])
        assert await desk.redis.scard(redis_keys.waiting_key("sim")) == 1


async def test_who_has_nothing_running_does_not_wait_for_a_place(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW, max_num_seqs=2)):
        greedy = [await desk.admit([1, i], max_tokens=2000) for i in range(6)]
        await desk.first_token(greedy[1])
        for i in range(2):
            answer = await desk.answer(await desk.admit([2, i], max_tokens=2, tenant_id="modest"))
            assert answer.end.usage.completion_tokens == 2
        assert await desk.redis.scard(redis_keys.waiting_key("sim")) == 4
        for stream_id in greedy:
            await desk.cancel(stream_id)


# ---- cancel


async def test_cancel_while_generating(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args={**SLOW, "process": True})):
        stream_id = await desk.admit(max_tokens=2000)
        await desk.first_token(stream_id)
        await desk.cancel(stream_id)
        answer = await desk.answer(stream_id)
        await desk.worker_that(lambda info: info.num_requests_running == 0)
    answer.check_order()
    assert (answer.end.state, answer.end.finish_reason) == (StreamState.CANCELLED, FinishReason.ABORT)
    assert answer.end.usage.completion_tokens == len(await desk.log.token_ids(stream_id)) > 0


async def test_a_reader_is_told_that_an_operator_ended_the_stream(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        stream_id = await desk.admit(max_tokens=2000)
        await desk.first_token(stream_id)
        await desk.queue.cancel(stream_id, tenant_id="t", reason=BY_OPERATOR, incarnation=GATEWAY)
        answer = await desk.answer(stream_id)
    assert (answer.end.state, answer.end.finish_reason) == (StreamState.CANCELLED, FinishReason.ABORT)
    assert answer.end.error is not None
    assert answer.end.error.code == "stream_cancelled"
    assert "operator" in answer.end.error.message


async def test_cancel_in_prefill(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(create=lambda deployment: JammedEngine(deployment, Jam())):
        stream_id = await desk.admit()
        await desk.read_until(stream_id, lambda entry: isinstance(entry, Started))
        await desk.cancel(stream_id)
        answer = await desk.answer(stream_id)
        await desk.worker_that(lambda info: info.num_requests_running == 0)
    assert answer.end.state is StreamState.CANCELLED
    assert answer.end.usage.completion_tokens == 0


async def test_cancel_whose_message_got_lost_comes_with_the_renewal(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        stream_id = await desk.admit(max_tokens=2000)
        await desk.first_token(stream_id)
        await desk.redis.hset(redis_keys.stream_key(stream_id), "cancel", "client")
        answer = await desk.answer(stream_id)
    assert answer.end.state is StreamState.CANCELLED


async def test_cancel_twice_and_after_the_end(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        stream_id = await desk.admit(max_tokens=2000)
        await desk.first_token(stream_id)
        await asyncio.gather(*(desk.cancel(stream_id) for _ in range(5)))
        answer = await desk.answer(stream_id)
        await desk.cancel(stream_id)
        assert (await desk.answer(await desk.admit())).end.state is StreamState.FINISHED
    assert sum(isinstance(entry, Ended) for entry in answer.entries) == 1


async def test_warm_up_when_idle(desk: Desk, run_worker: RunWorker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with run_worker(simulated("sim", engine_args={"ttft_ms": 100})):
        info = await desk.worker_in(WorkerState.READY)
        await desk.queue.tell([(f"@{info.incarnation}", WarmUp())])
        await desk.worker_that(lambda _: "warm-up generation" in caplog.text)


async def test_no_warm_up_of_one_that_has_just_worked(
    desk: Desk, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with run_worker(simulated("sim")):
        info = await desk.worker_in(WorkerState.READY)
        await desk.queue.tell([(f"@{info.incarnation}", WarmUp(3600.0))])
        await desk.answer(await desk.admit())
        assert "warm-up generation" not in caplog.text
        await desk.queue.tell([(f"@{info.incarnation}", WarmUp(0.0))])
        await desk.worker_that(lambda _: "warm-up generation" in caplog.text)


async def test_a_cold_start_is_measured(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args={"ttft_ms": 50})) as worker:
        info = await desk.worker_in(WorkerState.READY)
        registry = worker._metrics._registry
        assert info.cold_start_seconds >= 0.1, "a plain generation, then a structured one beside a long one"
        assert registry.get_sample_value("headrace_worker_cold_start_seconds") == info.cold_start_seconds


async def test_unknown_control_messages_do_no_harm(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        info = await desk.worker_in(WorkerState.READY)
        stream_id = await desk.admit(max_tokens=20)
        await desk.queue.tell([(f"@{info.incarnation}", WarmUp()), (stream_id, Credit(stream_id, 5))])
        await desk.redis.xadd(redis_keys.control_key(info.incarnation), {"d": b"\xc1nonsense"}, id="1-*")
        await desk.redis.xadd(redis_keys.control_key(info.incarnation), {"d": codec.encode(["later", 1])}, id="1-*")
        assert (await desk.answer(stream_id)).end.state is StreamState.FINISHED


# ---- refusals and deadlines


async def test_late_stream_is_refused(desk: Desk, run_worker: RunWorker) -> None:
    stream_id = await desk.admit(queue_timeout_seconds=0.0)
    async with run_worker():
        answer = await desk.answer(stream_id)
    assert [type(entry) for entry in answer.entries] == [Opened, Ended]
    assert answer.end.error is not None
    assert answer.end.error.code == "server_overloaded"
    assert answer.end.state is StreamState.FAILED


async def test_prompt_over_the_context_is_refused(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", max_model_len=16)):
        answer = await desk.answer(await desk.admit(list(range(16))))
        fits = await desk.answer(await desk.admit(list(range(10)), max_tokens=100))
    assert answer.end.error is not None
    assert answer.end.error.code == "context_length_exceeded"
    assert not any(isinstance(entry, Started) for entry in answer.entries)
    assert (fits.end.finish_reason, fits.end.usage.completion_tokens) == (FinishReason.LENGTH, 6)


async def test_no_first_token_in_time(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(create=lambda deployment: JammedEngine(deployment, Jam())):
        answer = await desk.answer(await desk.admit(ttft_timeout_seconds=0.2))
        await desk.worker_that(lambda info: info.num_requests_running == 0)
    assert answer.end.error is not None
    assert answer.end.error.code == "timeout"


async def test_no_next_token_in_time(desk: Desk, run_worker: RunWorker) -> None:
    """It is given to another owner as long as one of them brings it on, then twice more."""
    async with run_worker(simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 1, "stall_at": 4})):
        answer = await desk.answer(await desk.admit(inter_token_timeout_seconds=0.5, ttft_timeout_seconds=5))
    answer.check_order(owners=3)
    assert answer.end.error is not None
    assert answer.end.error.code == "timeout"
    assert answer.end.usage.completion_tokens == 3


async def test_a_stream_that_stalls_again_and_again_comes_on(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 60_000})):
        answer = await desk.answer(await desk.admit(inter_token_timeout_seconds=0.1, max_tokens=6))
    answer.check_order(owners=6)
    assert answer.end.state is StreamState.FINISHED
    assert answer.end.usage.completion_tokens == 6


# ---- lease and drain


async def test_registration(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", max_num_seqs=7)):
        info = await desk.worker_in(WorkerState.READY)
        raw: Reply = await desk.redis.get(redis_keys.model_assets_key(info.fingerprint))
    assets = codec.decode(raw, ModelAssets)
    assert (info.engine, info.deployment, info.max_num_seqs, info.config_version) == ("simulated", "sim", 7, 1)
    assert assets.max_model_len == info.max_model_len == 4096
    assert len(assets.probes) > 3
    assert await desk.workers() == []


async def test_lost_lease_starts_anew_and_drops_its_streams(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        before = await desk.worker_in(WorkerState.READY)
        stream_id = await desk.admit(max_tokens=2000)
        await desk.first_token(stream_id)
        await desk.redis.zadd(redis_keys.incarnations_key(), {before.incarnation: 1})
        after = await desk.worker_that(lambda info: info.incarnation != before.incarnation)
        await desk.worker_that(lambda info: info.incarnation == after.incarnation and info.num_requests_running == 0)
        entries = await desk.log.read(stream_id)
        assert entries is not None
        assert not isinstance(entries[-1], Ended)
        assert (await desk.answer(await desk.admit())).end.state is StreamState.FINISHED


async def test_stream_that_somebody_took_over_is_dropped(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        stream_id = await desk.admit(max_tokens=2000)
        await desk.first_token(stream_id)
        await desk.redis.hset(redis_keys.stream_key(stream_id), "owner", "gateway-other")
        await desk.worker_that(lambda info: info.num_requests_running == 0)
        entries = await desk.log.read(stream_id)
    assert entries is not None
    assert isinstance(entries[-1], Delta)


# ---- Redis away


async def test_short_outage_loses_nothing(desk: Desk, run_worker: RunWorker, redis_url: str, tmp_path: Path) -> None:
    async with (
        RedisProxy.between(tmp_path, redis_url) as proxy,
        run_worker(simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 2}), url=proxy.url, lease_seconds=20),
    ):
        stream_id = await desk.admit(max_tokens=300)
        await desk.first_token(stream_id)
        proxy.close()
        await asyncio.sleep(0.3)
        proxy.reopen()
        answer = await desk.answer(stream_id)
        reference = await desk.answer(await desk.admit(max_tokens=300))
    answer.check_order()
    assert answer.text == reference.text
    assert answer.end.state is StreamState.FINISHED


async def test_starts_while_redis_is_away(desk: Desk, run_worker: RunWorker, redis_url: str, tmp_path: Path) -> None:
    async with RedisProxy.between(tmp_path, redis_url) as proxy:
        proxy.close()
        asyncio.get_running_loop().call_later(0.3, proxy.reopen)
        async with run_worker(url=proxy.url):
            assert (await desk.answer(await desk.admit())).end.state is StreamState.FINISHED


async def test_a_stream_of_a_lost_claim_is_served(desk: Desk, run_worker: RunWorker) -> None:
    """Assigned to us, unknown to us: the next renewals put it back, and it is claimed again."""
    async with run_worker():
        info = await desk.worker_in(WorkerState.READY)
        await desk.admit(deployment="other")
        (claimed,) = await desk.queue.claim(info.incarnation, deployment="other", want=1)
        await desk.redis.hset(redis_keys.stream_key(claimed.stream_id), "deployment", "sim")
        answer = await desk.answer(claimed.stream_id)
    answer.check_order()
    started = answer.entries[1]
    assert isinstance(started, Started)
    assert started.attempt == 2


# ---- the engine's life


async def test_streams_outlive_their_engine(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args={**SLOW, "process": True})):
        stream_id = await desk.admit(max_tokens=200)
        await desk.first_token(stream_id)
        simulated_process().kill()
        answer = await desk.answer(stream_id)
    async with run_worker(config=snapshot(2, simulated("sim"))):  # a faster one: an answer is the same on any
        reference = await desk.answer(await desk.admit(max_tokens=200))
    answer.check_order(owners=2)
    assert answer.text == reference.text
    assert answer.end.state is StreamState.FINISHED
    assert answer.end.usage == reference.end.usage


async def test_refused_arguments_are_told_and_mended(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args={"speed": 9}), state=WorkerState.BROKEN):
        info = await desk.worker_in(WorkerState.BROKEN)
        assert "speed" in info.last_error
        stream_id = await desk.admit()
        await publish_snapshot(desk.redis, snapshot(2, simulated("sim")))
        answer = await desk.answer(stream_id)
        info = await desk.worker_in(WorkerState.READY)
    assert answer.end.state is StreamState.FINISHED
    assert info.last_error == ""
    assert info.config_version == 2


async def test_waits_for_its_deployment(desk: Desk, run_worker: RunWorker, caplog: pytest.LogCaptureFixture) -> None:
    other = snapshot(1, simulated("else"))
    async with run_worker(simulated("sim"), config=other, state=WorkerState.LOADING):
        await desk.worker_that(lambda _: "'sim' is not in the configuration" in caplog.text)
        await publish_snapshot(desk.redis, snapshot(2, simulated("sim")))
        assert (await desk.answer(await desk.admit())).end.state is StreamState.FINISHED
