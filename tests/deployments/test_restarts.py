"""Workers come to changed options one after another, under load: no stream is lost, and all but one serve."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from django.core.exceptions import ValidationError
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from apps.deployments.enums import EngineKind
from apps.deployments.fleet_mirror import registrations_read, workers_sync
from apps.deployments.models import ModelDeployment, RollingRestart
from apps.deployments.restarts import services
from apps.deployments.restarts.enums import RestartState
from apps.deployments.restarts.selectors import options_in_use
from apps.deployments.services import deployment_create, deployment_update
from apps.tenants.snapshots import snapshot_publish
from headrace_wire import redis_keys
from headrace_wire.draining import RESTART_STATUS
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.messages import StreamState
from tests.support.environment import child_environment
from tests.support.processes import Process
from tests.worker.desk import GATEWAY, Desk

pytestmark = pytest.mark.usefixtures("live_redis")

WORKERS = 3
TOKENS = 60
PATIENCE_SECONDS = 180.0


@dataclass
class Fleet:
    """Workers, and whoever starts a fresh one for each that ends for that: as the supervisor does."""

    redis_url: str
    processes: list[Process] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def start(self) -> None:
        command = [sys.executable, "-m", "headrace_worker", "--deployment", "rolling"]
        self.processes.append(Process(command, environ=child_environment(REDIS_URL=self.redis_url)))

    def supervise(self) -> None:
        for process in list(self.processes):
            if process.returncode is not None:
                self.processes.remove(process)
                self.statuses.append(process.returncode)
                process.stop()
                self.start()

    def infos(self) -> list[WorkerInfo]:
        return list(registrations_read().alive.values())

    def ready(self) -> int:
        return sum(info.state is WorkerState.READY for info in self.infos())

    def until(self, found: Callable[[], bool], *, each: Callable[[], Any] = lambda: None) -> None:
        """Looks after the fleet until something is so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not found():
            assert time.monotonic() < deadline, [process.log[-2000:] for process in self.processes]
            self.supervise()
            each()
            time.sleep(0.05)  # a poll of what other processes do


class Load:
    """Streams without a pause, each read to its end, in a thread with a loop of its own."""

    def __init__(self, redis_url: str) -> None:
        self.ended = 0
        self.troubles: list[str] = []
        self._redis_url = redis_url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    async def _run(self) -> None:
        redis = AsyncRedis.from_url(self._redis_url)
        desk = Desk(redis)
        await desk.queue.enlist(GATEWAY, lease_seconds=600, channels=[redis_keys.delivery_key(GATEWAY)])
        async with asyncio.TaskGroup() as callers:
            for number in range(4):
                callers.create_task(self._call(desk, number))
        await redis.aclose()

    async def _call(self, desk: Desk, number: int) -> None:
        texts = set()
        while not self._is_over.is_set():
            stream_id = await desk.admit([number + 1] * 8, deployment="rolling", max_tokens=TOKENS, ignore_eos=True)
            answer = await desk.answer(stream_id, seconds=PATIENCE_SECONDS)
            answer.check_order(owners=None)
            if answer.end.state is not StreamState.FINISHED or answer.end.usage.completion_tokens != TOKENS:
                self.troubles.append(f"{answer.end}")
            texts.add(answer.text)
            self.ended += 1
        if len(texts) > 1:
            self.troubles.append("an answer differed from the same one before")


@pytest.fixture
def rolling(db: None) -> ModelDeployment:
    options = {"ttft_ms": 5, "tpot_ms": 10}
    row = ModelDeployment(name="rolling", model="simulated", engine=EngineKind.SIMULATED, engine_args=options)
    deployment_create(deployment=row)
    snapshot_publish()
    return row


@pytest.fixture
def fleet(redis_url: str, live_redis: Redis, rolling: ModelDeployment) -> Iterator[Fleet]:
    fleet = Fleet(redis_url)
    for _number in range(WORKERS):
        fleet.start()
    try:
        fleet.until(lambda: fleet.ready() == WORKERS)
        yield fleet
    finally:
        for process in fleet.processes:
            process.stop()


def change(deployment: ModelDeployment, tpot_ms: int) -> None:
    deployment.engine_args = {"ttft_ms": 5, "tpot_ms": tpot_ms}
    deployment_update(deployment=deployment)
    snapshot_publish()


def test_all_get_new_options_and_no_stream_is_lost(
    fleet: Fleet, rolling: ModelDeployment, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {info.pid for info in fleet.infos()}
    with pytest.raises(ValidationError, match="present options"):
        services.restart_begin(deployment=rolling)
    change(rolling, tpot_ms=8)
    workers_sync()
    found = options_in_use(deployments=[rolling])[rolling.pk]
    assert (found.workers, found.outdated) == (WORKERS, WORKERS)
    with Load(redis_url) as load:
        fleet.until(lambda: load.ended > 0)
        restart = services.restart_begin(deployment=rolling)
        with pytest.raises(ValidationError, match="goes on already"):
            services.restart_begin(deployment=rolling)
        with monkeypatch.context() as patched:  # the process that drives it is killed between decision and order
            patched.setattr(services, "_tell", lambda _worker: sys.exit("killed"))
            with pytest.raises(SystemExit):
                services.restarts_advance()
        assert fleet.ready() == WORKERS
        fewest = [WORKERS]

        def drive() -> None:
            services.restarts_advance()
            fewest.append(fleet.ready())
            restart.refresh_from_db()

        fleet.until(lambda: restart.state != RestartState.RUNNING, each=drive)
        at_the_end = load.ended
        fleet.until(lambda: load.ended > at_the_end)
    assert (restart.state, restart.restarted, restart.reason) == (RestartState.DONE, WORKERS, "")
    assert load.troubles == []
    assert min(fewest) == WORKERS - 1
    assert fleet.statuses == [RESTART_STATUS] * WORKERS
    assert not before & {info.pid for info in fleet.infos()}
    workers_sync()
    assert options_in_use(deployments=[rolling])[rolling.pk].outdated == 0


def test_it_stops_at_a_successor_that_cannot_start_and_the_others_serve_on(
    fleet: Fleet, rolling: ModelDeployment, redis_url: str
) -> None:
    before = {info.pid for info in fleet.infos()}
    rolling.restarts_workers = True
    deployment_update(deployment=rolling)
    ModelDeployment.objects.update(engine_args={"no_such_option": 1})  # what only the engine finds out
    snapshot_publish()
    services.restarts_advance()  # begins by itself, as the deployment asks for it
    restart = RollingRestart.objects.get()
    with Load(redis_url) as load:

        def drive() -> None:
            services.restarts_advance()
            restart.refresh_from_db()

        fleet.until(lambda: restart.state != RestartState.RUNNING, each=drive)
        at_the_end = load.ended
        fleet.until(lambda: load.ended > at_the_end)
        services.restarts_advance()
    assert restart.state == RestartState.STOPPED
    assert "no_such_option" in restart.reason
    assert load.troubles == []
    assert fleet.ready() == WORKERS - 1
    assert len(before & {info.pid for info in fleet.infos()}) == WORKERS - 1
    assert RollingRestart.objects.count() == 1, "the same options are not tried again by themselves"
