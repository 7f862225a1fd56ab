"""Which of several workers of one machine loads first."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest
from msgspec.structs import replace

from headrace_wire import codec, redis_keys
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.command import create_engine
from headrace_worker.deployment_watch import DeploymentWatch
from headrace_worker.engine import Engine, EngineInfo
from headrace_worker.preload_turn import PreloadTurn
from headrace_worker.simulated_engine import SimulatedEngine
from tests.support.snapshots import publish_snapshot, simulated, snapshot
from tests.worker.conftest import RunWorker
from tests.worker.desk import WAIT_SECONDS, Desk

HOST = socket.gethostname()
FIRST = replace(simulated("first"), preload_priority=10)
SECOND = replace(simulated("second"), preload_priority=20)
OTHER = "worker-first"


class Gate:
    """Makes engines that start when they may, and notes in which order they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.both = asyncio.Event()
        self.may_load = asyncio.Event()

    def create(self, deployment: DeploymentConfig) -> Engine:
        engine = create_engine(deployment)
        assert isinstance(engine, SimulatedEngine)
        start = engine.start

        async def start_later(deliver: Callable[..., None]) -> EngineInfo:
            self.began.append(deployment.name)
            if len(self.began) > 1:
                self.both.set()
            await self.may_load.wait()
            return await start(deliver)

        engine.start = start_later  # type: ignore[method-assign]
        return engine


@pytest.fixture
async def watch(desk: Desk) -> AsyncIterator[DeploymentWatch]:
    """What a worker of `second` knows."""
    await publish_snapshot(desk.redis, snapshot(1, FIRST, SECOND))
    watch = DeploymentWatch(desk.redis, "second")
    running = asyncio.create_task(watch.run())
    await watch.wait()
    yield watch
    await cancel_and_wait(running)


def turn(desk: Desk, watch: DeploymentWatch, *, longest_seconds: float = WAIT_SECONDS) -> PreloadTurn:
    return PreloadTurn(desk.redis, desk.queue, watch, HOST, settle_seconds=0.0, longest_seconds=longest_seconds)


async def register(desk: Desk, *, lease_seconds: float = 60.0, **changes: object) -> None:
    """Have a worker of `first` registered on this machine, loading."""
    info = WorkerInfo(OTHER, "first", "simulated", WorkerState.LOADING, HOST, 1, 0.0)
    info = replace(info, **changes)
    await desk.redis.zadd(redis_keys.incarnations_key(), {OTHER: int((time.time() + lease_seconds) * 1000)})
    await desk.redis.hset(redis_keys.workers_key(), OTHER, codec.encode(info))


async def until_waiting(caplog: pytest.LogCaptureFixture, waiting: "asyncio.Task[None] | None" = None) -> None:
    """Return when a worker has said that it waits for `first`."""
    async with asyncio.timeout(WAIT_SECONDS):
        while "go first on this machine: first" not in caplog.text:
            assert waiting is None or not waiting.done()
            await asyncio.sleep(0.01)


async def test_the_first_in_order_loads_and_warms_before_the_other_begins(
    desk: Desk, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gate, config = Gate(), snapshot(1, FIRST, SECOND)
    async with (
        run_worker(SECOND, config=config, create=gate.create, state=WorkerState.LOADING),
        run_worker(FIRST, config=config, create=gate.create, state=WorkerState.LOADING),
    ):
        await until_waiting(caplog)
        assert gate.began == ["first"], "though it was started after the other"
        gate.may_load.set()
        await desk.worker_that(lambda info: info.deployment == "second" and info.state is WorkerState.READY)
        assert gate.began == ["first", "second"]
        assert {info.state for info in await desk.workers()} == {WorkerState.READY}


async def test_equal_numbers_load_at_the_same_time(desk: Desk, run_worker: RunWorker) -> None:
    gate, same = Gate(), replace(SECOND, preload_priority=FIRST.preload_priority)
    config = snapshot(1, FIRST, same)
    async with (
        run_worker(same, config=config, create=gate.create, state=WorkerState.LOADING),
        run_worker(FIRST, config=config, create=gate.create, state=WorkerState.LOADING),
    ):
        async with asyncio.timeout(WAIT_SECONDS):
            await gate.both.wait()
        gate.may_load.set()
        await desk.worker_that(lambda info: info.deployment == "second" and info.state is WorkerState.READY)


async def test_it_waits_until_the_other_is_ready(
    desk: Desk, watch: DeploymentWatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await register(desk)
    waiting = asyncio.create_task(turn(desk, watch).wait())
    await until_waiting(caplog, waiting)
    await register(desk, state=WorkerState.READY)
    async with asyncio.timeout(WAIT_SECONDS):
        await waiting


async def test_a_sleeper_that_somebody_waits_for_goes_first(
    desk: Desk, watch: DeploymentWatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await register(desk, state=WorkerState.SLEEPING)
    await turn(desk, watch).wait()
    stream_id = await desk.admit(deployment="first")
    waiting = asyncio.create_task(turn(desk, watch).wait())
    await until_waiting(caplog, waiting)
    await desk.cancel(stream_id)
    async with asyncio.timeout(WAIT_SECONDS):
        await waiting


@pytest.mark.parametrize(
    "changes",
    [
        {"state": WorkerState.READY},
        {"state": WorkerState.BROKEN},
        {"host": "elsewhere"},
        {"deployment": "second"},
        {"deployment": "nobody knows"},
        {"last_error": "out of memory"},
        {"lease_seconds": -1.0},
    ],
    ids=["ready", "broken", "another machine", "its own", "unknown", "failed before", "dead"],
)
async def test_it_waits_for_nobody_else(
    desk: Desk, watch: DeploymentWatch, caplog: pytest.LogCaptureFixture, changes: dict[str, object]
) -> None:
    caplog.set_level(logging.INFO)
    await register(desk, **changes)  # type: ignore[arg-type]
    await turn(desk, watch).wait()
    assert "go first" not in caplog.text


async def test_it_waits_no_longer_than_it_may_and_follows_the_configuration(
    desk: Desk, watch: DeploymentWatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await register(desk)
    await turn(desk, watch, longest_seconds=0.0).wait()
    assert "not waited for any longer" in caplog.text
    waiting = asyncio.create_task(turn(desk, watch).wait())
    await until_waiting(caplog, waiting)
    await publish_snapshot(desk.redis, snapshot(2, FIRST, replace(SECOND, preload_priority=1)))
    async with asyncio.timeout(WAIT_SECONDS):
        await waiting
    assert watch.goes_before == frozenset()
