"""An engine that nobody uses is ended, and is there again for the next request."""

import asyncio
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from headrace_wire import codec, redis_keys
from headrace_wire.draining import resume_worker
from headrace_wire.fleet import WorkerState
from headrace_wire.functions import Reply
from headrace_wire.messages import FinishReason, WarmUp
from headrace_wire.prefill_reports import PrefillReport
from tests.support.snapshots import publish_snapshot, simulated, snapshot
from tests.worker.conftest import ENGINE_START_SECONDS, EngineWorker, RunWorker, engine_deployment
from tests.worker.desk import WAIT_SECONDS, Desk
from tests.worker.prompts import prompt_cache

SLEEPY = replace(simulated("sim"), sleep_after_seconds=0.5)


async def warmed_at(desk: Desk, cache_id: str) -> float:
    """Return when it was computed last; a worker whose lease was lost meanwhile has two names."""
    reports: Reply = await desk.redis.hvals(redis_keys.prefix_warmth_key(cache_id))
    return max(codec.decode(raw, PrefillReport).at for raw in reports)


async def test_an_unused_engine_ends_and_comes_back_for_a_request(desk: Desk, run_worker: RunWorker) -> None:
    config = replace(snapshot(1, SLEEPY), prompt_caches=[prompt_cache("ours")])
    async with run_worker(SLEEPY, config=config) as worker:
        before = await warmed_at(desk, "ours")
        asleep = await desk.worker_in(WorkerState.SLEEPING)
        assert worker._host._engine is None
        assert asleep.cold_start_seconds > 0, "what it took tells how long a wake will take"
        waking = asyncio.create_task(desk.worker_that(lambda info: info.state is not WorkerState.SLEEPING))
        stream_id = await desk.admit()
        answer = await desk.answer(stream_id)
        answer.check_order()
        assert answer.end.finish_reason is not FinishReason.ERROR
        awake = await waking
        assert awake.incarnation == asleep.incarnation, "it was registered all the time"
        assert await warmed_at(desk, "ours") > before, "pinned prefixes were computed again, before the request"
        await desk.worker_in(WorkerState.SLEEPING)


async def test_no_stream_is_cut_off(desk: Desk, run_worker: RunWorker) -> None:
    slow = replace(SLEEPY, engine_args={"ttft_ms": 1, "tpot_ms": 50, "answer_tokens": 50})
    async with run_worker(slow):
        answer = await desk.answer(await desk.admit())
        assert len(answer.starts) == 1, "one owner from its beginning to its end"
        answer.check_order()
        await desk.worker_in(WorkerState.SLEEPING)


async def test_a_warm_up_is_no_use(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(SLEEPY):
        (info,) = await desk.workers()
        async with asyncio.timeout(WAIT_SECONDS):
            while (await desk.workers())[0].state is WorkerState.READY:
                await desk.queue.tell([(f"@{info.incarnation}", WarmUp())])


async def test_who_may_not_sleep_any_more_wakes(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(SLEEPY):
        await desk.worker_in(WorkerState.SLEEPING)
        await publish_snapshot(desk.redis, snapshot(2, replace(SLEEPY, sleep_after_seconds=0.0)))
        await desk.worker_in(WorkerState.READY)


async def test_who_is_told_to_go_on_wakes_before_anybody_asks(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(SLEEPY):
        asleep = await desk.worker_in(WorkerState.SLEEPING)
        await resume_worker(desk.redis, asleep.incarnation)
        await desk.worker_that(lambda info: info.state is not WorkerState.SLEEPING)
        await desk.worker_in(WorkerState.SLEEPING)


@pytest.mark.engine
async def test_the_engines_process_is_gone_and_another_one_answers(
    engine_desk: Desk, engine_worker: EngineWorker, tiny_model: Path
) -> None:
    desk, (engine,) = engine_desk, engine_worker.engine_pids()
    config = snapshot(2, replace(engine_deployment(tiny_model), sleep_after_seconds=1.0))
    caches = [prompt_cache("tides", "tiny")]
    await publish_snapshot(desk.redis, replace(config, prompt_caches=caches))
    try:
        await desk.worker_in(WorkerState.SLEEPING)
        await desk.worker_that(lambda _: not psutil.pid_exists(engine))
        warm = await warmed_at(desk, "tides")
        answer = await desk.answer(await desk.admit(deployment="tiny"), seconds=ENGINE_START_SECONDS)
        assert answer.end.finish_reason is FinishReason.LENGTH
        assert engine_worker.engine_pids() not in ([], [engine])
        assert await warmed_at(desk, "tides") > warm
    finally:
        config = replace(snapshot(3, engine_deployment(tiny_model)), prompt_caches=caches)
        await publish_snapshot(desk.redis, config)
        await desk.worker_in(WorkerState.READY, seconds=ENGINE_START_SECONDS)
