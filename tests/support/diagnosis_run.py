"""Causes put into a running installation in turn: who is when in which state, what is said then, and the report.

While a cause is in, the one before it is looked at without it, and the next one's deployment as it usually is: each has
a window before, one with it and one after it. What goes wrong with one cause is told at its end, and stops no other.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.latency.store import SLOT_SECONDS, slot_of
from headrace_wire.latency.summary import Summary
from tests.support.book_agreement import Pair, merged, pairs_of, worst_of
from tests.support.book_windows import BookWindows, Window
from tests.support.cause_acts import worker_ends
from tests.support.injected_causes import Injection, Strength
from tests.support.live_stack import LiveStack
from tests.support.steady_load import SteadyLoad

RANGE = """
import json
from datetime import UTC, datetime
from apps.ops.latency.scopes import LatencyScope, TimeRange

def of(window):
    return TimeRange.of(*(datetime.fromtimestamp(at, UTC) for at in window))

"""
READ = f"""{RANGE}
from dataclasses import asdict
from apps.ops.diagnosis.reading import diagnosis_of, observation_of

found = diagnosis_of(NAME, of(NOW), of(BEFORE))
print(json.dumps({{
    "findings": [{{**asdict(one), "seconds": min(one.seconds, 1e9)}} for one in found.findings],
    "moved": [one.says for one in found.moved],
    "fleet": [str(observation_of(NAME, of(window)).fleet) for window in (NOW, BEFORE)],
}}))
"""
TOTAL = f"""{RANGE}
from apps.ops.latency.selectors import latency_total

print(latency_total(LatencyScope(deployment=NAME), of(WINDOW)).pack().hex())
"""
STEP_SECONDS = 150.0
"""What a step may take beyond its samples, on whatever machine."""
HEAD = f"{'cause':<18} {'took':>7}  {'':>5}  {'apart':>6}  {'named':<32}  evidence"
CLEARING_SECONDS = 120.0
"""For what has to be taken out also when the time is over."""


@dataclass(frozen=True)
class Told:
    """What the diagnosis said of a deployment in a window."""

    causes: list[str]
    """The one that explains most first."""
    seconds: dict[str, float]
    """What each adds to a stream."""
    evidence: str
    """Of the first one."""
    why: str
    """All of it."""


def told(stack: LiveStack, name: str, now: Window, before: Window) -> Told:
    """Has the page's reading compare windows of a deployment."""
    printed = stack.run_django(f"NAME, NOW, BEFORE = {name!r}, {now!r}, {before!r}\n{READ}").splitlines()[-1]
    answer = json.loads(printed)
    findings = answer["findings"]
    return Told(
        [finding["cause"] for finding in findings],
        {finding["cause"]: finding["seconds"] for finding in findings},
        " ".join(findings[0]["evidence"]) if findings else "",
        json.dumps(answer, indent=1, ensure_ascii=False),
    )


@dataclass
class Case:
    """One cause on its way."""

    injection: Injection
    load: SteadyLoad
    strength: Strength
    started_at: float = field(default_factory=time.monotonic)
    began: int = field(default_factory=lambda: slot_of(time.time()))
    before: Window | None = None
    found: Told | None = None
    pairs: list[Pair] = field(default_factory=list)
    book: Summary = field(default_factory=Summary)
    problems: list[str] = field(default_factory=list)
    is_on: bool = False
    """Its load runs."""
    is_in: bool = False
    seconds: float = 0.0

    def judge(self, found: Told) -> None:
        """Notes what was said while it was in."""
        self.found = found
        if found.causes[:1] != [self.injection.cause]:
            self.problems.append(f"not named first: {found.why}")

    def judge_after(self, found: Told, slowness: float) -> None:
        """Notes what was said without it: it may be named for what the machine is slow by itself, and no more."""
        left = found.seconds.get(self.injection.cause, 0.0)
        if left > max(slowness, self.strength.slowness):
            self.problems.append(f"still named without it, {left:.2f} s: {found.why}")

    @property
    def row(self) -> str:
        """For people: cause, seconds, what was named, the worst percentile, the first evidence."""
        named = ", ".join(self.found.causes) if self.found is not None else "-"
        worst = f"{worst_of(self.pairs).apart:.1%}" if self.pairs else "-"
        verdict = "wrong" if self.problems else "right"
        evidence = self.found.evidence if self.found is not None else ""
        return f"{self.injection.cause:<18} {self.seconds:>5.0f} s  {verdict}  {worst:>6}  {named:<32}  {evidence}"


@dataclass(frozen=True)
class Step:
    """What one window is of."""

    after: Case | None = None
    now: Case | None = None
    begins: Injection | None = None


class DiagnosisRun:
    """Runs all of them within so many seconds."""

    def __init__(
        self, stack: LiveStack, injections: Sequence[Injection], *, seconds: float, tell: Callable[[str], None]
    ) -> None:
        """`tell` is given a line for each cause as soon as it is known."""
        self.cases: list[Case] = []
        self._stack = stack
        self._injections = injections
        self._books = BookWindows(stack)
        self._deadline = time.monotonic() + seconds
        self._slowness = [0.0]
        self._reports: list[asyncio.Task[None]] = []
        self._tell = tell
        tell(HEAD)

    @property
    def strength(self) -> Strength:
        """By what the machine was like in the last two windows."""
        return Strength(max(self._slowness[-2:]))

    async def run(self) -> None:
        """Puts each in and out; returns when all have been looked at, or the time is over."""
        try:
            after: Case | None = None
            for number, injection in enumerate(self._injections):
                following = next(iter(self._injections[number + 1 :]), None)
                if number == 0:
                    await self._step(Step(begins=injection))
                now = self.cases[-1]
                if injection.is_alone:
                    await self._step(Step(after, now))
                    after = None
                    await self._step(Step(now, None, following))
                else:
                    await self._step(Step(after, now, following))
                    after = now
            await self._step(Step(after))
            await asyncio.gather(*self._reports)
        finally:
            await cancel_and_wait(*self._reports)
            for case in self.cases:
                await self._noting([case], self._take_out(case), least=CLEARING_SECONDS)
            await asyncio.gather(*(case.load.drop() for case in self.cases))
            self._books.close()

    @property
    def pairs(self) -> list[Pair]:
        """All streams together, of those whose streams are known whole."""
        whole, book = [case for case in self.cases if case.pairs], Summary()
        for case in whole:
            book.merge(case.book)
        return pairs_of(book, merged(case.load.seen for case in whole)) if whole else []

    def problems(self) -> Iterator[str]:
        """Yields what was wrong, in the order of the causes."""
        for case in self.cases:
            yield from (f"{case.injection.cause}: {problem}" for problem in case.problems)

    # ---- one step

    async def _step(self, step: Step) -> None:
        """Has a window with these, and judges it; whatever goes wrong is noted."""
        begins = await self._begin(step.begins) if step.begins is not None else None
        if step.now is not None and step.now.before is None:
            step.now.problems.append("not put in: there is nothing to compare it with")
            step = Step(step.after, None, step.begins)
        cases = [case for case in (step.after, step.now, begins) if case is not None and case.is_on]
        if not cases:
            return
        during = None
        if step.now is not None:
            case = step.now
            if case.injection.comes_during:
                during = self._put_in(case)
            else:
                await self._noting([case], self._put_in(case))
        window = await self._window(cases, step.now, during)
        if window is not None:
            await self._noting(cases, self._judge(step, begins, window))
        if step.now is not None:
            await self._noting([step.now], self._take_out(step.now), least=CLEARING_SECONDS)
        if step.after is not None:
            self._reports.append(asyncio.create_task(self._end(step.after)))

    async def _begin(self, injection: Injection) -> Case:
        strength = self.strength
        load = SteadyLoad(self._stack, injection.deployment, injection.usual(strength))
        case = Case(injection, load, strength)
        self.cases.append(case)
        for deployment in (injection.deployment, *injection.beside):
            await self._noting([case], asyncio.to_thread(self._stack.start_worker, deployment))
        if not case.problems:
            case.is_on = True
            load.change(load.habits)
        return case

    async def _put_in(self, case: Case) -> None:
        if not case.injection.is_shaped_before:
            case.strength = self.strength
        case.is_in = True
        await case.injection.put_in(self._stack, case.load, case.strength)

    async def _take_out(self, case: Case) -> None:
        if case.is_in:
            case.is_in = False
            await case.injection.take_out(self._stack, case.load, case.strength)

    async def _window(
        self, cases: Sequence[Case], now: Case | None, during: Coroutine[Any, Any, None] | None
    ) -> Window | None:
        loads = [case.load for case in cases if case is not now or case.injection.lets_through]
        samples = now.injection.slots if now is not None else 1
        timeouts = now.injection.timeouts if now is not None else 0
        windows: list[Window] = []

        async def find() -> None:
            windows.append(await self._books.window(loads, samples=samples, timeouts=timeouts, during=during))

        await self._noting(cases, find(), beyond=samples * SLOT_SECONDS)
        return windows[0] if windows else None

    async def _judge(self, step: Step, begins: Case | None, window: Window) -> None:
        if begins is not None and begins.is_on:
            begins.before = window
            self._slowness.append(await asyncio.to_thread(self._books.slowness, begins.injection.deployment, window))
        if step.now is not None:
            step.now.judge(await self._told(step.now, window))
        if step.after is not None and step.after.found is not None:
            step.after.judge_after(await self._told(step.after, window), self.strength.slowness)

    async def _told(self, case: Case, window: Window) -> Told:
        assert case.before is not None
        return await asyncio.to_thread(told, self._stack, case.injection.deployment, window, case.before)

    async def _end(self, case: Case) -> None:
        """Has its streams end, and compares them with the page."""
        if case.is_on:
            await self._noting([case], self._compare(case))
        case.seconds = time.monotonic() - case.started_at
        self._tell(case.row)

    async def _compare(self, case: Case) -> None:
        await case.load.end()
        await self._books.wait_filed(case.load, case.began)
        window = case.began, slot_of(time.time()) + SLOT_SECONDS
        asked = f"NAME, WINDOW = {case.injection.deployment!r}, {window!r}\n{TOTAL}"
        printed = await asyncio.to_thread(self._stack.run_django, asked)
        case.book = Summary.unpack(bytes.fromhex(printed.splitlines()[-1]))
        case.pairs = pairs_of(case.book, case.load.seen)
        await worker_ends(self._stack, case.injection.deployment)

    async def _noting(
        self, cases: Sequence[Case], work: Awaitable[object], *, beyond: float = 0.0, least: float = 0.0
    ) -> None:
        """Does something within its time; what goes wrong with it is noted for all of these."""
        left = max(least, min(STEP_SECONDS + beyond, self._deadline - time.monotonic()))
        try:
            async with asyncio.timeout(left):
                await work
        except Exception as error:  # noqa: BLE001  it is told in the report
            what = "out of time" if isinstance(error, TimeoutError) else repr(error)
            for case in cases:
                case.problems.append(what)
