"""Celery is killed while the supervisor of `make up` has its call: the step is neither lost nor made twice.

A relay stands where the supervisor's socket was. It kills the Celery whose call it has, before it passes that on or
after the supervisor did what was asked; the supervisor starts another Celery, whose ticks find the decision.
"""

import os
import re
import signal
import socket
import sqlite3
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from enum import Enum, auto
from pathlib import Path

import msgspec
import psutil
import pytest

from headrace_wire.supervisor_control import (
    SOCKET_NAME,
    WorkersAsked,
    WorkersTold,
    ask,
    encode,
    listening_socket,
)
from tests.e2e.test_autoscale import NAME, PATIENCE_SECONDS, Scaled, came_to_hold
from tests.launcher.test_up import END_SECONDS, READY
from tests.support.processes import run_to_end

TICK = 5
"""Seconds. A decision expires after eight: a new Celery is there before."""
SET_UP = f"""
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_create
deployment_create(deployment=ModelDeployment(
    name="{NAME}", model="simulated", engine="simulated", max_num_seqs=4, engine_args={{"ttft_ms": 50, "tpot_ms": 50}}
))
every, _ = IntervalSchedule.objects.get_or_create(every={TICK}, period="seconds")
PeriodicTask.objects.filter(name="Autoscale").update(interval=every, expire_seconds={2 * TICK})
PeriodicTasks.update_changed()
"""
FEWEST = f"""
from apps.deployments.autoscale.services import autoscale_policy_create, autoscale_policy_update
from apps.deployments.models import AutoscalePolicy, ModelDeployment
deployment = ModelDeployment.objects.get(name="{NAME}")
policy = AutoscalePolicy.objects.filter(deployment=deployment).first()
change = autoscale_policy_update if policy else autoscale_policy_create
policy = policy or AutoscalePolicy(deployment=deployment, mode="on", max_workers=3, start_seconds=600)
policy.min_workers = {{fewest}}
change(policy=policy)
"""
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a socket's other end."""


class Moment(Enum):
    """Of a call, when its caller is killed."""

    BEFORE = auto()
    AFTER = auto()


class Slow(Scaled):
    """An installation whose ticks leave time for a new Celery."""

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "HEADRACE_AUTOSCALE_SECONDS": str(TICK)}

    def run(self, code: str) -> None:
        run_to_end([sys.executable, "manage.py", "shell", "--no-imports", "-c", code], self.django)

    def results(self) -> list[tuple[int, int, str, str]]:
        return [row[:4] for row in self.decisions()]

    @property
    def samples(self) -> int:
        """How many ticks have looked."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)) as database:
            (count,) = database.execute("SELECT count(*) FROM deployments_scalingsample").fetchone()
        return int(count)

    @property
    def celery_pids(self) -> set[int]:
        return {pid for name, pid in self.up_json["pids"].items() if name.startswith("celery-")}

    @property
    def started(self) -> set[str]:
        """Workers that the supervisor has ever started, by its log."""
        return set(re.findall(rf"worker:{NAME}-\d+(?= *\|)", self.runs[-1].log))

    def comes_to(self, what: str, holds: Callable[[], bool]) -> None:
        if not came_to_hold(holds):
            pytest.fail(f"{what} did not happen; decisions: {self.decisions()}\n{self.runs[-1].log[-6000:]}")


class Relay:
    """Passes calls on, one after another; but the next one that changes something may be its caller's last."""

    def __init__(self, installation: Slow) -> None:
        self.counts: list[int] = []
        """What the supervisor was told, in order."""
        self.has_killed = threading.Event()
        self._installation = installation
        self._beyond = installation.state_dir / "beyond"
        self._moment: Moment | None = None
        self._held: WorkersAsked | None = None

    @property
    def wanted(self) -> int:
        """How many workers the supervisor keeps running."""
        return ask(self._beyond, WorkersAsked(NAME)).wanted

    def kill_next(self, moment: Moment) -> None:
        """Has the next caller killed."""
        self.has_killed.clear()
        self._moment = moment

    def let_go(self) -> None:
        """Passes on what a killed caller had asked for."""
        if self._held is not None:
            self._pass_on(self._held)
            self._held = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Is there instead of the supervisor's socket."""
        self._beyond.mkdir()
        (self._installation.state_dir / SOCKET_NAME).rename(self._beyond / SOCKET_NAME)
        with listening_socket(self._installation.state_dir) as listener:
            listener.listen()
            thread = threading.Thread(target=self._serve, args=(listener,), name="relay", daemon=True)
            thread.start()
            yield
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it is over
                return
            with connection, suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        caller, _, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        with connection.makefile("rb") as lines:
            asked = msgspec.json.decode(lines.readline(), type=WorkersAsked)
        moment = None
        if asked.count is not None:
            moment, self._moment = self._moment, None
        if moment is Moment.BEFORE:
            self._held = asked
            self._kill(caller)
            return
        told = self._pass_on(asked)
        if moment is Moment.AFTER:
            self._kill(caller)
        else:
            connection.sendall(encode(told))

    def _pass_on(self, asked: WorkersAsked) -> WorkersTold:
        told = ask(self._beyond, asked)
        if asked.count is not None:
            self.counts.append(asked.count)
        return told

    def _kill(self, caller: int) -> None:
        """The process that waits for the answer, and the Celery that it belongs to."""
        killed = [psutil.Process(pid) for pid in {*self._installation.celery_pids, caller}]
        for process in killed:
            os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs(killed, timeout=PATIENCE_SECONDS)
        self.has_killed.set()


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Slow]:
    slow = Slow(tmp_path / "state")
    slow.start().wait_for_line(READY, timeout=2 * PATIENCE_SECONDS)
    yield slow
    for run in slow.runs:
        run.stop(timeout=END_SECONDS)


@pytest.fixture
def relay(installation: Slow) -> Iterator[Relay]:
    relay = Relay(installation)
    with relay.in_place():
        installation.run(SET_UP)
        yield relay


def step_with_a_kill(installation: Slow, relay: Relay, moment: Moment, before: int, target: int) -> None:
    """Has the fewest workers raised, Celery killed within the call for them, and another one go on."""
    killed = installation.celery_pids
    relay.kill_next(moment)
    installation.run(FEWEST.format(fewest=target))
    assert relay.has_killed.wait(PATIENCE_SECONDS), installation.runs[-1].log[-6000:]
    assert installation.results()[-1] == (before, target, "minimum", "decided")
    assert relay.wanted == (before if moment is Moment.BEFORE else target)

    installation.comes_to("another Celery", lambda: bool(installation.celery_pids - killed))
    installation.comes_to("the step", lambda: relay.wanted == target)
    installation.comes_to("its end", lambda: "decided" not in {row[3] for row in installation.results()})
    relay.let_go()  # the killed one's call arrives at last
    looked = installation.samples
    installation.comes_to("two more looks", lambda: installation.samples > looked + 1)
    assert relay.wanted == target
    # On a machine where a new Celery takes long it expires, and is decided again where it is not done.
    assert {row[3] for row in installation.results()} <= {"done", "expired"}, installation.decisions()
    assert installation.results()[-1][:3] == (before, target, "minimum")


def test_celery_that_is_killed_within_the_supervisors_call_neither_loses_the_step_nor_doubles_it(
    installation: Slow, relay: Relay
) -> None:
    step_with_a_kill(installation, relay, Moment.BEFORE, 0, 1)
    step_with_a_kill(installation, relay, Moment.AFTER, 1, 2)
    assert set(relay.counts) == {1, 2}
    assert relay.counts == sorted(relay.counts), "absolute numbers, the later one last"
    assert installation.started == {f"worker:{NAME}-1", f"worker:{NAME}-2"}, "each was started once"
