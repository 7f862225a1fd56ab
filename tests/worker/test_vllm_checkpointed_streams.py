"""Streams of the real worker that go on from their KV checkpoint: their engine was killed, or they were suspended."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace_wire.checkpoint_folders import stream_folder
from headrace_wire.messages import AnyLogEntry, StreamState
from tests.worker.conftest import ENGINE_START_SECONDS, EngineWorker
from tests.worker.desk import Answer, Desk

pytestmark = pytest.mark.engine

LONG = " ".join(f"wheel{i}" for i in range(300))
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 21, "max_tokens": 400, "ignore_eos": True}


async def admit(desk: Desk, *, window: int = 0, queue_timeout_seconds: float = 60.0) -> str:
    return await desk.admit(
        LONG, deployment="tiny", window=window, queue_timeout_seconds=queue_timeout_seconds, **SEEDED
    )


def files(worker: EngineWorker, stream_id: str) -> list[Path]:
    folder = stream_folder(worker.checkpoints, "t", stream_id)
    return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


async def is_discarded(desk: Desk, worker: EngineWorker, stream_id: str) -> None:
    """Wait until a stream's checkpoint is gone; the worker registers anew all the time."""
    await desk.worker_that(lambda _: not stream_folder(worker.checkpoints, "t", stream_id).exists())


@pytest.fixture
async def undisturbed(engine_desk: Desk) -> tuple[Answer, list[int]]:
    stream_id = await admit(engine_desk)
    answer = await engine_desk.answer(stream_id)
    assert answer.end.usage.prompt_tokens > 900
    return answer, await engine_desk.log.token_ids(stream_id)


async def test_engine_killed(
    engine_desk: Desk, engine_worker: EngineWorker, undisturbed: tuple[Answer, list[int]]
) -> None:
    """The next engine has computed nothing: what it calls cached was loaded."""
    whole, ids = undisturbed
    loaded = engine_worker.metric("headrace_worker_checkpoints_loaded_total")
    stream_id = await admit(engine_desk, window=350)  # so that it does not end before it is killed

    def is_saved(entry: AnyLogEntry) -> bool:
        return entry.seq > 70 and bool(files(engine_worker, stream_id))

    await engine_desk.read_until(stream_id, is_saved)
    (engine,) = engine_worker.engine_pids()
    os.kill(engine, signal.SIGKILL)
    await engine_desk.queue.credit([(stream_id, 2**31 - 1)])
    answer = await engine_desk.answer(stream_id, seconds=ENGINE_START_SECONDS)
    answer.check_order(owners=2)
    assert await engine_desk.log.token_ids(stream_id) == ids
    assert answer.text == whole.text
    assert answer.end.usage.prompt_tokens == whole.end.usage.prompt_tokens
    assert answer.end.usage.cached_tokens > 900
    await is_discarded(engine_desk, engine_worker, stream_id)
    async with asyncio.timeout(30):
        while engine_worker.metric("headrace_worker_checkpoints_loaded_total") == loaded:
            await engine_desk.worker_that(lambda info: info.tokens_generated > 0)
    assert engine_worker.metric("headrace_worker_checkpoint_bytes_total") > 1_000_000


async def test_suspended(engine_desk: Desk, engine_worker: EngineWorker, undisturbed: tuple[Answer, list[int]]) -> None:
    """What it has is saved when it leaves the engine, whole blocks to the last one."""
    whole, ids = undisturbed
    stream_id = await admit(engine_desk, window=100)
    await engine_desk.record_in(stream_id, StreamState.SUSPENDED)
    tokens = whole.end.usage.prompt_tokens + 99
    saved = sum(path.stat().st_size for path in files(engine_worker, stream_id))
    assert tokens // 32 * 32 * 1024 <= saved < (tokens + 32) * 1024
    await engine_desk.queue.credit([(stream_id, 2**31 - 1)])
    answer = await engine_desk.answer(stream_id)
    assert (await engine_desk.log.token_ids(stream_id), answer.text) == (ids, whole.text)
    await is_discarded(engine_desk, engine_worker, stream_id)


async def test_handed_over(
    engine_desk: Desk, engine_worker: EngineWorker, undisturbed: tuple[Answer, list[int]]
) -> None:
    """A worker is drained without grace; the next one has computed nothing."""
    whole, ids = undisturbed
    stream_id = await admit(engine_desk, window=350, queue_timeout_seconds=ENGINE_START_SECONDS)
    await engine_desk.read_until(stream_id, lambda entry: entry.seq > 100)
    engine_worker.process.send_signal(signal.SIGTERM)
    engine_worker.process.wait_for_line("draining")
    engine_worker.process.send_signal(signal.SIGTERM)
    assert engine_worker.process.wait(timeout=60) == 0
    assert files(engine_worker, stream_id)
    engine_worker.start_another()
    await engine_desk.queue.credit([(stream_id, 2**31 - 1)])
    answer = await engine_desk.answer(stream_id, seconds=ENGINE_START_SECONDS)
    answer.check_order(owners=2)
    assert (await engine_desk.log.token_ids(stream_id), answer.text) == (ids, whole.text)
    assert answer.end.usage.cached_tokens > 900


async def test_cancelled(engine_desk: Desk, engine_worker: EngineWorker) -> None:
    stream_id = await admit(engine_desk, window=200)
    await engine_desk.read_until(stream_id, lambda _: bool(files(engine_worker, stream_id)))
    await engine_desk.cancel(stream_id)
    await engine_desk.answer(stream_id)
    await is_discarded(engine_desk, engine_worker, stream_id)
