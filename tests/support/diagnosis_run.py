"""Causes put into a running installation: a window before, one with them, one after, and what is said of each.

Everything is of this run alone: workers are started for it and ended with it, loads begin and end with it, and what was
put in is taken out whatever goes wrong.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from headrace_wire.latency.store import SLOT_SECONDS, slot_of
from headrace_wire.latency.summary import Summary
from tests.load.stamped_clients import pinging
from tests.support.book_agreement import Pair, pairs_of
from tests.support.book_windows import BookWindows, Window, sampling
from tests.support.cause_acts import worker_ends
from tests.support.injected_causes import Injection, Strength
from tests.support.live_stack import LiveStack
from tests.support.steady_load import SteadyLoad, steady_loads

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
START_SECONDS = 90.0
STEP_SECONDS = 100.0
"""What a step may take beyond its samples, on whatever machine."""
CLEARING_SECONDS = 60.0
"""For what has to be taken out also when the time is over."""
LEFT_SHARE = 0.25
"""Of what a cause added while it was in: with more than that it is there still."""
PING_SECONDS = 0.1

T = TypeVar("T")


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
    began: int = 0
    """The first slot that may have a stream of it."""
    is_in: bool = False
    found: Told | None = None
    """While it was in."""
    gone: Told | None = None
    """After it was."""
    pairs: list[Pair] = field(default_factory=list)

    def problems(self) -> Iterator[str]:
        """Yields what the diagnosis said wrongly."""
        cause = self.injection.cause
        if self.found is not None and self.found.causes[:1] != [cause]:
            yield f"{cause} is not named first: {self.found.why}"
        if self.found is not None and self.gone is not None:
            added, left = self.found.seconds.get(cause, 0.0), self.gone.seconds.get(cause, 0.0)
            if added and left > LEFT_SHARE * added:
                yield f"{cause} is named still, {left:.2f} s of {added:.2f} s: {self.gone.why}"


class DiagnosisRun:
    """Some causes at once, each in a deployment of its own."""

    def __init__(self, stack: LiveStack, injections: Sequence[Injection], tell: Callable[[str], None]) -> None:
        """`tell` is given a line for each step as soon as it is done."""
        self.cases = [Case(one, SteadyLoad(stack, one.deployment, one.usual(Strength()))) for one in injections]
        self.seconds: dict[str, float] = {}
        """What each step took."""
        self.ways: list[float] = []
        """Of pings to the gateway and back, while nothing was put in: how late this machine makes everybody."""
        self.strength = Strength()
        self._stack, self._tell = stack, tell
        self._books = BookWindows(stack)
        self._name = ", ".join(one.cause for one in injections)

    async def run(self, *, compare: bool) -> None:
        """Has all three windows; with `compare`, the percentiles of all streams as well.

        Raises:
            TimeoutError: A step took too long; its name was told.
        """
        try:
            await self._step("start", self._start(), START_SECONDS)
            async with sampling(self._stack), steady_loads([case.load for case in self.cases]):
                await self._windows()
                if compare:
                    await self._step("compare", self._compare())
        finally:
            await self._clear()

    async def _windows(self) -> None:
        samples = max(case.injection.slots for case in self.cases)
        async with self._pinged():
            before = await self._step("before", self._usual())
        strength = self.strength
        self._tell(
            f"{self._name}: the gateway takes {strength.slowness:.3f} s itself, {strength.seconds:.1f} s are added"
        )
        now = await self._step("with", self._with(samples), STEP_SECONDS + samples * SLOT_SECONDS)
        await self._step("out", self._take_out())
        async with self._pinged():
            after = await self._step("after", self._window())
        for case in self.cases:
            name = case.injection.deployment
            case.found = await asyncio.to_thread(told, self._stack, name, now, before)
            case.gone = await asyncio.to_thread(told, self._stack, name, after, before)

    # ---- steps

    async def _step(self, name: str, work: Awaitable[T], limit: float = STEP_SECONDS) -> T:
        began, end = time.monotonic(), "out of time or failed"
        try:
            async with asyncio.timeout(limit):
                done = await work
            end = "done"
            return done
        finally:
            self.seconds[name] = time.monotonic() - began
            self._tell(f"{self._name}: {name} {end} after {self.seconds[name]:.0f} s")

    async def _start(self) -> None:
        """One after another: many at once leave a busy machine no time for anything else."""
        for case in self.cases:
            for deployment in (case.injection.deployment, *case.injection.beside):
                worker = self._stack.begin_worker(deployment)
                await asyncio.to_thread(worker.wait_for_line, "ready", timeout=START_SECONDS)
            case.began = slot_of(time.time())

    async def _usual(self) -> Window:
        """Returns a window without any; on a slow machine some loads are heavier then than was thought at first."""
        found = await self._window()
        slowness = max(self._books.slowness(case.injection.deployment, found) for case in self.cases)
        thought, self.strength = self.strength, Strength(slowness)
        shaped = [case for case in self.cases if case.injection.is_shaped_before]
        if not shaped or self.strength.seconds == thought.seconds:
            return found
        for case in shaped:
            case.load.change(case.injection.usual(self.strength))
        return await self._window()

    async def _with(self, samples: int) -> Window:
        late = [case for case in self.cases if case.injection.comes_during]
        for case in self.cases:
            if case not in late:
                await self._put_in(case)
        loads = [case.load for case in self.cases if case.injection.lets_through]
        timeouts = max(case.injection.timeouts for case in self.cases)

        async def during() -> None:
            for case in late:
                await self._put_in(case)

        return await self._books.window(loads, samples=samples, timeouts=timeouts, during=during)

    async def _window(self) -> Window:
        return await self._books.window([case.load for case in self.cases])

    async def _put_in(self, case: Case) -> None:
        case.is_in = True
        await case.injection.put_in(self._stack, case.load, self.strength)

    async def _take_out(self) -> None:
        for case in self.cases:
            if case.is_in:
                case.is_in = False
                await case.injection.take_out(self._stack, case.load, self.strength)

    async def _compare(self) -> None:
        """Has all streams end, and compares them with the page."""
        for case in self.cases:
            await case.load.end()
            await self._books.wait_filed(case.load, case.began)
            window = case.began, slot_of(time.time()) + SLOT_SECONDS
            asked = f"NAME, WINDOW = {case.injection.deployment!r}, {window!r}\n{TOTAL}"
            printed = await asyncio.to_thread(self._stack.run_django, asked)
            case.pairs = pairs_of(Summary.unpack(bytes.fromhex(printed.splitlines()[-1])), case.load.seen)

    async def _clear(self) -> None:
        """Leaves the installation as it was, for others."""
        try:
            async with asyncio.timeout(CLEARING_SECONDS):
                await self._take_out()
        finally:
            self._books.close()
            for case in self.cases:
                for deployment in (case.injection.deployment, *case.injection.beside):
                    await worker_ends(self._stack, deployment)

    @asynccontextmanager
    async def _pinged(self) -> AsyncIterator[None]:
        at = urlsplit(self._stack.base_url)
        assert at.hostname is not None
        assert at.port is not None
        async with pinging(at.hostname, at.port, key=self._stack.api_key, every_seconds=PING_SECONDS) as ways:
            yield
        self.ways += ways
