"""Workers that are dead, hung and erroring in turn, under load: each heals by itself, is told of, and loses no stream.

Everything is real but the model: gateway, two workers whose simulated engines are processes of their own, Celery with
its beat, the alert rules that an installation has. What may end in an error is what docs/self-healing.md says: streams
that a sick engine gave up before it was ejected.
"""

import asyncio
import itertools
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.draining import resume_worker
from headrace_wire.fleet import WorkerInfo, WorkerState
from tests.faults.golden import Golden, undisturbed
from tests.faults.journey import travel
from tests.faults.members import Member
from tests.faults.readers import Hop, Reader, Transport
from tests.faults.verdicts import Judge, Outcome, Verdict
from tests.support.live_stack import LiveStack, running_stack
from tests.support.stream_probe import StreamProbe

pytestmark = pytest.mark.faults

MODEL = "main"
PROMPTS, TOKENS, AT_ONCE = 8, 60, 16
AT_WORK = 4
"""Streams that an engine has when it is struck."""
PATIENCE_SECONDS = 180.0
LOOK_SECONDS = 0.05
QUARANTINE_AFTER = 5
"""Engines: one killed, one hung, one erroring, one killed again, and one that does not live to serve."""
RESTART_SECONDS = 1.0
ERROR_WINDOW = 20
"""Streams that a worker looks back on; a sick engine has failed no more before it is suspect."""
OFTEN = """
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks

every, _ = IntervalSchedule.objects.get_or_create(every=2, period="seconds")
tasks = ["deployments.workers_sync", "ops.alerts_evaluate"]
PeriodicTask.objects.filter(task__in=tasks).update(interval=every, expire_seconds=10)
PeriodicTasks.update_changed()
"""


@dataclass
class Ward:
    """A stack, its two workers, and what can be seen of them."""

    stack: LiveStack
    database: Path
    patient: Member
    """Whose engines are struck."""
    other: Member
    """Whose process is."""
    model: str = MODEL
    goldens: list[Golden] = field(default_factory=list)
    readers: list[tuple[Reader, Golden]] = field(default_factory=list)
    probe: StreamProbe = field(init=False)

    def __post_init__(self) -> None:
        self.probe = StreamProbe(self.stack.redis_url)

    @property
    def ports(self) -> Sequence[int]:
        return [urlsplit(self.stack.base_url).port or 0]

    @property
    def api_key(self) -> str:
        return self.stack.api_key

    @property
    def redis_url(self) -> str:
        return self.stack.redis_url

    @property
    def log(self) -> str:
        """Of both workers and Celery, for a failed test."""
        return "\n\n".join([self.patient.log[-8000:], self.other.log[-4000:], self.stack.log[-8000:]])

    def workers(self) -> list[WorkerInfo]:
        rows: Any = self.probe.redis.hgetall(redis_keys.workers_key())
        return [codec.decode(raw, WorkerInfo) for raw in rows.values()]

    def of_patient(self) -> WorkerInfo | None:
        return next((info for info in self.workers() if info.pid == self.patient.process.pid), None)

    def engine(self) -> psutil.Process | None:
        """The patient's."""
        children = psutil.Process(self.patient.process.pid).children()
        return next((one for one in children if is_engine(one)), None)

    def worst(self, rule: str) -> float:
        """How bad it has been since the alert fires; 0 where it does not."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)) as database:
            rows = database.execute(
                "SELECT worst_value FROM ops_alert WHERE rule_key = ? AND state = 'firing'", (rule,)
            ).fetchall()
        return float(rows[0][0]) if rows else 0.0

    async def until(self, what: str, holds: Callable[[], object]) -> None:
        """Returns when it is so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not await asyncio.to_thread(holds):
            if time.monotonic() > deadline:
                pytest.fail(f"{what} did not happen: {self.workers()}\n{self.log}")
            await asyncio.sleep(LOOK_SECONDS)

    async def until_healed(self, failures: int) -> None:
        """Returns when the patient serves again, after so many engines in all, and has been told of."""

        def heals() -> bool:
            info = self.of_patient()
            return info is not None and info.state is WorkerState.READY and info.engine_failures == failures

        await self.until(f"another engine after {failures}", heals)
        await self.until(f"the alert of {failures} engines", lambda: self.worst("engine-ended") >= failures)


def is_engine(process: psutil.Process) -> bool:
    try:
        return "headrace_worker.simulated_process" in process.cmdline()
    except psutil.Error:
        return False


def worker_of(stack: LiveStack, name: str) -> Member:
    variables = {
        "HEADRACE_QUARANTINE_AFTER": str(QUARANTINE_AFTER),
        "HEADRACE_EJECT_WINDOW": str(ERROR_WINDOW),
        "HEADRACE_ENGINE_RESTART_SECONDS": str(RESTART_SECONDS),
    }
    command = [sys.executable, "-m", "headrace_worker", "--deployment", MODEL]
    return Member(name, command, {**stack.environ, **variables}, ["engine ready"])


@pytest.fixture
def ward() -> Iterator[Ward]:
    engine = {"ttft_ms": 30, "tpot_ms": 40, "process": True}
    deployments = {MODEL: {"engine_args": engine, "max_num_seqs": 2 * AT_ONCE}}
    with (
        tempfile.TemporaryDirectory(prefix="headrace-healing-") as folder,
        running_stack(Path(folder), deployments, HEADRACE_LEASE_SECONDS="2", HEADRACE_RENEW_SECONDS="0.4") as stack,
    ):
        stack.run_django(OFTEN)
        stack.start_celery()
        first = next(process for process in stack.processes if process.name.startswith("worker"))
        first.stop()  # in order; both workers of this story are ours
        ward = Ward(stack, Path(folder) / "headrace.sqlite3", worker_of(stack, "patient"), worker_of(stack, "other"))
        try:
            for worker in (ward.patient, ward.other):
                worker.start()
                asyncio.run(worker.ready())
            yield ward
        finally:
            ward.patient.stop()
            ward.other.stop()


async def load(ward: Ward, over: asyncio.Event) -> None:
    """Keeps so many answers under way, each read to its end."""

    async def read_on(number: int) -> None:
        for turn in itertools.count():
            if over.is_set():
                return
            golden = ward.goldens[(number + turn) % PROMPTS]
            reader = Reader(ward.ports, ward.api_key, MODEL, golden.prompt, TOKENS)
            ward.readers.append((reader, golden))
            start = Transport.CHAT if number % 2 else Transport.WEBSOCKET
            await travel(reader, itertools.cycle([Hop(start, 0)]), seconds=PATIENCE_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        for number in range(AT_ONCE):
            tasks.create_task(read_on(number))


async def strike(ward: Ward, number: signal.Signals) -> psutil.Process:
    """Sends a signal to the engine that the patient has now."""
    await ward.until("an engine", ward.engine)
    engine = ward.engine()
    assert engine is not None
    engine.send_signal(number)
    return engine


async def strike_at_work(ward: Ward, number: signal.Signals) -> psutil.Process:
    """Does it once the engine has streams."""
    await ward.until("work", lambda: (info := ward.of_patient()) is not None and info.num_requests_running >= AT_WORK)
    return await strike(ward, number)


async def strike_engines(ward: Ward) -> None:
    """Dead, hung and erroring, then dead again before it serves: that is one too many."""
    for failures, number in enumerate((signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1), start=1):
        await strike_at_work(ward, number)
        await ward.until_healed(failures)
    killed = await strike_at_work(ward, signal.SIGKILL)
    killed_at = time.monotonic()
    await ward.until("the next engine", lambda: ward.engine() not in (None, killed))
    assert time.monotonic() - killed_at >= RESTART_SECONDS, "without a pause"
    await strike(ward, signal.SIGKILL)

    await ward.until("the quarantine", lambda: (info := ward.of_patient()) is not None and info.quarantined_at > 0)
    await ward.until("its alert", lambda: ward.worst("worker-quarantined") >= 1)
    info = ward.of_patient()
    assert info is not None
    assert (info.state, ward.engine()) == (WorkerState.BROKEN, None)
    async with Redis.from_url(ward.redis_url) as redis:
        await resume_worker(redis, info.incarnation)  # what the page's button does
    await ward.until("its release", lambda: (info := ward.of_patient()) is not None and info.state is WorkerState.READY)
    await ward.until("the end of its alert", lambda: not ward.worst("worker-quarantined"))


async def strike_processes(ward: Ward) -> None:
    """Killed, and another one started as a supervisor does; then frozen until everybody takes it for lost."""
    ward.other.kill()
    ward.other.start()
    await ward.other.ready()
    await ward.until("the alert of a lost worker", lambda: ward.worst("worker-lost") >= 1)
    ward.other.freeze()
    await ward.until("the alert of another one", lambda: ward.worst("worker-lost") >= 2)
    ward.other.thaw()


async def test_dead_hung_and_erroring_workers_heal_or_wait_for_a_person_and_lose_no_stream(ward: Ward) -> None:
    prompts = [f"Healing, question {number}." for number in range(PROMPTS)]
    ward.goldens = await asyncio.gather(*[undisturbed(ward, prompt, max_tokens=TOKENS) for prompt in prompts])
    over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load(ward, over))
        try:
            await strike_engines(ward)
            await strike_processes(ward)
        finally:
            over.set()
    async with Redis.from_url(ward.redis_url) as redis:
        judge = Judge(redis)
        outcomes = [await judge.judge(reader, golden) for reader, golden in ward.readers]
    check(ward, outcomes)


def check(ward: Ward, outcomes: Sequence[Outcome]) -> None:
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    told = f"{dict(verdicts)}\n{[one for one in outcomes if one.verdict is not Verdict.EXACT][:5]}\n{ward.log}"
    print(f"{len(outcomes)} streams, {sum(len(one.takeovers) for one in outcomes)} takeovers: {dict(verdicts)}")
    assert verdicts[Verdict.EXACT] + verdicts[Verdict.FAILED] == len(outcomes), told
    assert {one.why for one in outcomes if one.verdict is Verdict.FAILED} == {"engine_error"}, told
    assert verdicts[Verdict.FAILED] <= ERROR_WINDOW + 2 * AT_ONCE, told  # while its worker makes sure
    assert sum(len(one.takeovers) for one in outcomes) >= 2 * AT_WORK, told
    ends = [line for line in ward.patient.log.splitlines() if "engine failed (" in line]
    kinds = [line.partition("engine failed (")[2].partition(")")[0] for line in ends]
    assert kinds == ["died", "died", "ejected", "died", "not_started"], told
