"""Workers that run beside a gateway's end of the wire (`desk`)."""

import asyncio
import re
import signal
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from headrace_wire import redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.redis_client import connect
from headrace_wire.snapshot import ConfigSnapshot, DeploymentConfig, EngineKind
from headrace_worker.command import create_engine
from headrace_worker.config import HealingLimits, HoldLimits, WorkerConfig
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.engine_host import EngineFactory
from headrace_worker.metrics import WorkerMetrics
from headrace_worker.worker import Worker
from tests.support.environment import child_environment
from tests.support.processes import Process, free_port
from tests.support.snapshots import publish_snapshot, simulated, snapshot
from tests.worker.desk import GATEWAY, WAIT_SECONDS, Desk
from tests.worker.prompts import prompt_cache

ENGINE_START_SECONDS = 400.0
NO_QUARANTINE = HealingLimits(quarantine_after=0)
"""Tests end more engines than a machine that works does."""


@pytest.fixture
async def desk(redis_url: str) -> AsyncIterator[Desk]:
    """An enlisted gateway on an empty Redis."""
    redis = connect(redis_url)
    await redis.flushall()
    desk = Desk(redis)
    await desk.queue.enlist(GATEWAY, lease_seconds=600, channels=[redis_keys.delivery_key(GATEWAY)])
    yield desk
    await redis.aclose()


RunWorker = Callable[..., AbstractAsyncContextManager[Worker]]


@pytest.fixture
def run_worker(redis_url: str, desk: Desk) -> RunWorker:
    """Start ready workers in this process, for the length of an `async with`; they are drained at its end.

    Their leases outlast a machine that stands still for a while: no stream changes its owner for that.
    """

    @asynccontextmanager
    async def run(
        deployment: DeploymentConfig | None = None,
        *,
        create: EngineFactory = create_engine,
        state: WorkerState = WorkerState.READY,
        lease_seconds: float = 20.0,
        renew_seconds: float = 0.2,
        drain_seconds: float = 0.5,
        url: str | None = None,
        config: ConfigSnapshot | None = None,
        limits: HoldLimits | None = None,
        healing: HealingLimits = NO_QUARANTINE,
        checkpoints: CheckpointSettings | None = None,
        adapter_dir: Path | None = None,
    ) -> AsyncIterator[Worker]:
        deployment = deployment or simulated("sim")
        await publish_snapshot(desk.redis, config or snapshot(1, deployment))
        settings = WorkerConfig(
            deployment=deployment.name,
            redis_url=url or redis_url,
            lease_seconds=lease_seconds,
            renew_seconds=renew_seconds,
            drain_seconds=drain_seconds,
            restart_seconds=0.05,
            hold_limits=limits or HoldLimits(),
            healing=healing,
            checkpoints=checkpoints,
            adapter_dir=adapter_dir,
        )
        worker = Worker(settings, create, WorkerMetrics(CollectorRegistry()))
        task = asyncio.create_task(worker.run())
        try:
            await _unless_ended(task, desk.worker_that(lambda info: _has_come_to(state, worker, info)))
            yield worker
        finally:
            worker.stop()
            async with asyncio.timeout(WAIT_SECONDS):
                await task

    return run


def _has_come_to(wanted: WorkerState, worker: Worker, info: WorkerInfo) -> bool:
    """One that sleeps was ready before, perhaps for less time than between two looks."""
    was_ready = wanted is WorkerState.READY and info.state is WorkerState.SLEEPING
    return info.incarnation == worker._lease.incarnation and (info.state is wanted or was_ready)


async def _unless_ended(task: "asyncio.Task[None]", wait: Coroutine[Any, Any, object]) -> None:
    waiting = asyncio.create_task(wait)
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        task.result()
    await waiting


# ---- the real engine, one per session


@dataclass
class EngineWorker:
    """A worker process with vLLM on the tiny model, on a Redis of its own."""

    process: Process
    redis_url: str
    metrics_port: int
    checkpoints: Path
    """Its checkpoint directory."""

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels, as the worker exports it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{re.escape(name)}[ {{]", line)]
        assert values, f"{name} is not exported"
        return sum(values)

    def engine_pids(self) -> list[int]:
        """Return the process ids of its EngineCore (resource trackers left out)."""
        return engine_children(self.process.pid)

    def replace_killed(self) -> None:
        """Kill the worker and start another one in its place, on the same Redis; returns before that one is ready."""
        self.process.send_signal(signal.SIGKILL)
        self.start_another()

    def start_another(self) -> None:
        """Start a worker in place of one that has ended; returns before it is ready."""
        self.process.stop()
        self.process = start_engine_worker(self.redis_url, metrics_port=self.metrics_port, checkpoints=self.checkpoints)


def engine_children(pid: int) -> list[int]:
    """Return the process ids of a worker's engines, also of one that has just begun."""
    return [child.pid for server in fork_servers(pid) for child in server.children()]


def fork_servers(pid: int) -> list[psutil.Process]:
    """Return the fork server of a worker, once it has one."""
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):
            if "forkserver" in " ".join(child.cmdline()):
                found.append(child)
    return found


def engine_deployment(model: Path, **changes: Any) -> DeploymentConfig:
    """Return the deployment `tiny` on vLLM."""
    fields: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": 8, **changes}
    return DeploymentConfig(id="tiny", name="tiny", model=str(model), engine=EngineKind.VLLM, **fields)


def start_engine_worker(redis_url: str, *, metrics_port: int = 0, checkpoints: Path | None = None) -> Process:
    """Start the worker process of deployment `tiny`; with `checkpoints`, it saves contexts from 128 tokens on there."""
    environ = child_environment(
        REDIS_URL=redis_url,
        HEADRACE_DRAIN_SECONDS="5",
        HEADRACE_ENGINE_RESTART_SECONDS="0.1",
        HEADRACE_QUARANTINE_AFTER="0",
        HEADRACE_HOLD_SECONDS="3",
        HEADRACE_METRICS_PORT=str(metrics_port),
        HEADRACE_CHECKPOINT_DIR=str(checkpoints or ""),
        HEADRACE_CHECKPOINT_MIN_TOKENS="128",
        HEADRACE_CHECKPOINT_TOKENS="64",
    )
    return Process([sys.executable, "-m", "headrace_worker", "--deployment", "tiny"], name="worker", environ=environ)


@pytest.fixture(scope="session")
def engine_redis_url() -> Iterator[str]:
    """A Redis that no other test empties."""
    with tempfile.TemporaryDirectory(prefix="headrace-redis-") as folder:
        redis = EmbeddedRedis.in_directory(find_redis_server(), Path(folder))
        with Process(redis.command(), name="redis") as server:
            server.wait_for_address(str(redis.socket))
            yield redis.url


@pytest.fixture(scope="session")
def engine_worker(
    engine_redis_url: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineWorker]:
    """The session's one real engine, ready. It has a pinned prompt cache, `tides`."""

    async def publish() -> None:
        redis = connect(engine_redis_url)
        config = replace(snapshot(1, engine_deployment(tiny_model)), prompt_caches=[prompt_cache("tides", "tiny")])
        await publish_snapshot(redis, config)
        await redis.aclose()

    asyncio.run(publish())
    metrics_port, checkpoints = free_port(), tmp_path_factory.mktemp("engine") / "checkpoints"
    process = start_engine_worker(engine_redis_url, metrics_port=metrics_port, checkpoints=checkpoints)
    worker = EngineWorker(process, engine_redis_url, metrics_port, checkpoints)
    try:
        process.wait_for_line("engine ready", timeout=ENGINE_START_SECONDS)
        yield worker
    finally:
        worker.process.stop()


@pytest.fixture
async def engine_desk(engine_worker: EngineWorker) -> AsyncIterator[Desk]:
    """A gateway's end beside the real engine, which is ready and idle."""
    redis = connect(engine_worker.redis_url)
    desk = Desk(redis)
    try:
        await desk.worker_that(
            lambda info: info.state is WorkerState.READY and info.num_requests_running == 0,
            seconds=ENGINE_START_SECONDS,
        )
    except BaseException:
        print(engine_worker.process.log)
        raise
    yield desk
    await redis.aclose()
