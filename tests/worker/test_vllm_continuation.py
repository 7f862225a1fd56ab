"""The real engine dies, or a stream is suspended, at several tokens of every kind of answer: nothing of it shows."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headrace_wire.messages import ChatTurn, Started, StreamState, StructuredOutput
from tests.worker.conftest import ENGINE_START_SECONDS, EngineWorker
from tests.worker.desk import Answer, Desk

pytestmark = pytest.mark.engine

ASK = [ChatTurn("user", "What do you know of the wheel?")]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 12, "maxLength": 20},
        "kind": {"enum": ["overshot", "undershot"]},
        "paddles": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5},
    },
    "required": ["name", "kind", "paddles"],
    "additionalProperties": False,
}
SCRIPTS = "At dusk 👩‍👩‍👧‍👦 the 🇨🇭 wheel turns 🌊🌊: สวัสดีครับ, 水, вода."

ANSWERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True},
    "seeded": {"temperature": 1.0, "seed": 4, "max_tokens": 60, "ignore_eos": True},
    "seeded top_p": {"temperature": 0.9, "top_p": 0.9, "top_k": 200, "seed": -9, "max_tokens": 60, "ignore_eos": True},
    "schema": {
        "temperature": 1.0,
        "seed": 12,
        "max_tokens": 300,
        "structured": StructuredOutput(json_schema=json.dumps(SCHEMA)),
    },
    "scripts": {"temperature": 0.0, "max_tokens": 200, "structured": StructuredOutput(choice=(SCRIPTS,))},
}
RUNNING = {**ANSWERS["seeded"], "max_tokens": 900}
"""Of a stream that runs while its engine dies."""


@dataclass
class Told:
    """An answer, undisturbed."""

    sampling: dict[str, Any]
    answer: Answer
    ids: list[int]


async def admit(desk: Desk, sampling: dict[str, Any], *, window: int = 0) -> str:
    return await desk.admit(ASK, deployment="tiny", window=window, **sampling)


async def tell(desk: Desk, sampling: dict[str, Any]) -> Told:
    stream_id = await admit(desk, sampling)
    answer = await desk.answer(stream_id)
    answer.check_order()
    assert answer.end.state is StreamState.FINISHED
    return Told(sampling, answer, await desk.log.token_ids(stream_id))


@pytest.fixture(scope="module")
def known() -> dict[str, list[Told]]:
    """What was told already: undisturbed answers are the same at any time, from each of the engines."""
    return {}


@pytest.fixture
async def undisturbed(engine_desk: Desk, known: dict[str, list[Told]]) -> list[Told]:
    """One of each kind; the last one ends at a stop string that spans tokens."""
    if "undisturbed" not in known:
        known["undisturbed"] = await tell_all(engine_desk)
    return known["undisturbed"]


@pytest.fixture
async def long_one(engine_desk: Desk, known: dict[str, list[Told]]) -> Told:
    if "long" not in known:
        known["long"] = [await tell(engine_desk, RUNNING)]
    return known["long"][0]


async def tell_all(desk: Desk) -> list[Told]:
    told = [await tell(desk, sampling) for sampling in ANSWERS.values()]
    texts = [delta.text for delta in told[0].answer.deltas if delta.text]
    stop = texts[30][-1] + texts[31][:1]
    told.append(await tell(desk, {**ANSWERS["greedy"], "stop": (stop,)}))
    assert told[-1].answer.end.stop_reason == stop
    assert json.loads(told[3].answer.text)
    assert told[4].answer.text == SCRIPTS
    return told


def cuts(told: Told) -> list[int]:
    length = len(told.ids)
    return [1, length // 3, length // 2, length - 2]


async def hold_at_every_cut(desk: Desk, undisturbed: Sequence[Told]) -> list[tuple[str, Told]]:
    """Start each answer once for each cut, with credit up to there."""
    streams = [(await admit(desk, told.sampling, window=cut), told) for told in undisturbed for cut in cuts(told)]
    held = {StreamState.HELD, StreamState.SUSPENDED}
    for stream_id, _ in streams:
        await desk.record_that(stream_id, lambda record: record.state in held)
    return streams


async def check_equal(desk: Desk, streams: Sequence[tuple[str, Told]], *, owners: int | None) -> None:
    for stream_id, told in streams:
        answer = await desk.answer(stream_id, seconds=ENGINE_START_SECONDS)
        answer.check_order(owners=owners)
        assert await desk.log.token_ids(stream_id) == told.ids
        assert answer.text == told.answer.text
        assert answer.end.stop_reason == told.answer.end.stop_reason
        assert (answer.end.state, answer.end.finish_reason) == (told.answer.end.state, told.answer.end.finish_reason)
        assert answer.end.usage.prompt_tokens == told.answer.end.usage.prompt_tokens
        assert answer.end.usage.completion_tokens == told.answer.end.usage.completion_tokens


async def test_held_and_resumed(engine_desk: Desk, undisturbed: list[Told]) -> None:
    streams = await hold_at_every_cut(engine_desk, undisturbed)
    await engine_desk.queue.credit([(stream_id, 2**31 - 1) for stream_id, _ in streams])
    await check_equal(engine_desk, streams, owners=None)


async def test_suspended_and_resumed(engine_desk: Desk, undisturbed: list[Told]) -> None:
    streams = await hold_at_every_cut(engine_desk, undisturbed)
    for stream_id, _ in streams:
        await engine_desk.record_in(stream_id, StreamState.SUSPENDED)
    await engine_desk.worker_that(lambda info: info.kv_cache_usage == 0)
    await engine_desk.queue.credit([(stream_id, 2**31 - 1) for stream_id, _ in streams])
    await check_equal(engine_desk, streams, owners=2)


async def test_engine_killed(
    engine_desk: Desk, engine_worker: EngineWorker, undisturbed: list[Told], long_one: Told
) -> None:
    """In the engine when it dies: each answer at each cut, held; and answers that run."""
    streams = await hold_at_every_cut(engine_desk, undisturbed)
    live = [(await admit(engine_desk, RUNNING), long_one) for _ in range(3)]
    for stream_id, _ in live:
        await engine_desk.first_token(stream_id)
    (engine,) = engine_worker.engine_pids()
    killed_at = time.monotonic()
    os.kill(engine, signal.SIGKILL)
    await engine_desk.queue.credit([(stream_id, 2**31 - 1) for stream_id, _ in streams])
    starts = [
        engine_desk.read_until(
            stream_id, lambda entry: isinstance(entry, Started) and entry.seq > 0, seconds=ENGINE_START_SECONDS
        )
        for stream_id, _ in live
    ]
    await asyncio.gather(*starts)
    print(f"streams stood still for {time.monotonic() - killed_at:.1f} s")
    await check_equal(engine_desk, live, owners=2)
    await check_equal(engine_desk, streams, owners=None)


async def test_worker_killed(
    engine_desk: Desk, engine_worker: EngineWorker, undisturbed: list[Told], long_one: Told
) -> None:
    """As above, and nothing of the worker is left; another process goes on with every stream."""
    streams = await hold_at_every_cut(engine_desk, undisturbed)
    live = [(await admit(engine_desk, RUNNING), long_one) for _ in range(3)]
    for stream_id, _ in live:
        await engine_desk.first_token(stream_id)
    (info,) = await engine_desk.workers()
    engine_worker.replace_killed()
    assert set(await engine_desk.bury(info.incarnation)) >= {stream_id for stream_id, _ in live}
    await engine_desk.queue.credit([(stream_id, 2**31 - 1) for stream_id, _ in streams])
    await check_equal(engine_desk, live, owners=2)
    await check_equal(engine_desk, streams, owners=None)
