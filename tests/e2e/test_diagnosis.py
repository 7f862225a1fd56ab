"""Causes put into a running installation are named by the diagnosis, first of all, and no longer once they are gone.

Each deployment is under a steady load and well at first. Latencies are what the gateway files, the fleet is sampled as
Celery does it, the verdict is the page's. Windows are compared with those of the same run, and injections are as strong
as this machine, which is measured first, makes necessary.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest

from apps.ops.diagnosis.causes import Cause
from tests.support.book_agreement import ERROR, table_of, worst_of
from tests.support.book_windows import BookWindows, Window, sampling
from tests.support.cause_acts import deployments_create, gpu_prepare, guarded_key
from tests.support.diagnosis_run import STEP_SECONDS, DiagnosisRun, told
from tests.support.environment import REPOSITORY_ROOT
from tests.support.injected_causes import (
    DEPLOYMENTS,
    LEASE_SECONDS,
    STALL_SECONDS,
    Injection,
    Strength,
    injections,
)
from tests.support.live_stack import LiveStack, running_stack
from tests.support.steady_load import SteadyLoad, steady_loads

RUN_SECONDS = 13 * 60.0
"""For all causes in turn; with the installation's start it stays below a quarter of an hour."""
REPORT = REPOSITORY_ROOT / "var" / "bench" / "diagnosis.txt"
SHORT = (Cause.CAPACITY, Cause.PREFIX_MISSES, Cause.SLOW_CLIENTS)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LiveStack]:
    names: Sequence[str] = request.param  # those that have a worker from the start
    folder = tmp_path_factory.mktemp("diagnosis")
    variables = {"PYTHONPATH": gpu_prepare(folder), "HEADRACE_LEASE_SECONDS": str(LEASE_SECONDS)}
    deployments = {name: DEPLOYMENTS.get(name, {}) for name in names}
    tenant = {"stall_timeout_seconds": STALL_SECONDS}
    with running_stack(folder, deployments, tenant=tenant, **variables) as running:
        yield running


class Three:
    """Some causes at once, each in a deployment of its own."""

    def __init__(self, stack: LiveStack, causes: Sequence[Injection]) -> None:
        self._stack, self._causes, self._books = stack, causes, BookWindows(stack)
        self.loads = {one.cause: SteadyLoad(stack, one.deployment, one.usual(Strength())) for one in causes}
        self.strength = Strength()

    async def window(self) -> Window:
        async with asyncio.timeout(STEP_SECONDS):
            return await self._books.window([*self.loads.values()])

    async def usual(self) -> Window:
        """Returns a window without any; on a slow machine prompts are longer then than was thought at first."""
        found = await self.window()
        slowness = max(self._books.slowness(one.deployment, found) for one in self._causes)
        thought, self.strength = self.strength, Strength(slowness)
        if self.strength.seconds == thought.seconds:
            return found
        for one in self._causes:
            self.loads[one.cause].change(one.usual(self.strength))
        return await self.window()

    async def all_in(self) -> Window:
        for one in self._causes:
            await one.put_in(self._stack, self.loads[one.cause], self.strength)
        return await self.window()

    async def all_out(self) -> Window:
        for one in self._causes:
            await one.take_out(self._stack, self.loads[one.cause], self.strength)
        return await self.window()


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Says something at once, to whoever looks on and in the report."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text("", "utf-8")

    def tell(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)
        with REPORT.open("a", encoding="utf-8") as report:
            report.write(f"{text}\n")

    return tell


@pytest.mark.faults
@pytest.mark.parametrize(
    "stack", [[one.deployment for one in injections("") if one.cause in SHORT]], indirect=True, ids=["short"]
)
async def test_three_causes_at_once_are_told_apart_and_are_gone_when_they_are_gone(
    stack: LiveStack, tell: Callable[[str], None]
) -> None:
    causes = [one for one in injections("") if one.cause in SHORT]
    three = Three(stack, causes)
    async with sampling(stack), steady_loads(three.loads.values()):
        before = await three.usual()
        tell(f"the gateway takes {three.strength.slowness:.2f} s by itself: causes add {three.strength.seconds:.1f} s")
        now = await three.all_in()
        after = await three.all_out()
    problems = []
    for one in causes:
        found, gone = [await asyncio.to_thread(told, stack, one.deployment, window, before) for window in (now, after)]
        tell(f"{one.cause}: {', '.join(found.causes)}. {found.evidence} Then: {', '.join(gone.causes) or '-'}")
        if found.causes[:1] != [one.cause]:
            problems.append(f"{one.cause} is not named first: {found.why}")
        if gone.seconds.get(one.cause, 0.0) > three.strength.slowness:
            problems.append(f"{one.cause} is named still: {gone.why}")
    assert not problems, "\n".join(problems)


@pytest.mark.faults
@pytest.mark.parametrize("stack", [["idle"]], indirect=True, ids=["all"])
async def test_each_cause_in_turn_is_named_first_and_the_page_agrees_with_its_clients(
    stack: LiveStack, tell: Callable[[str], None]
) -> None:
    await asyncio.to_thread(deployments_create, stack, DEPLOYMENTS)
    causes = injections(await asyncio.to_thread(guarded_key, stack))
    assert {one.cause for one in causes} == set(Cause)
    run = DiagnosisRun(stack, causes, seconds=RUN_SECONDS, tell=tell)
    async with sampling(stack):
        await run.run()
    together = run.pairs
    tell("\n".join(["", "all streams", *table_of(together), *run.problems()]))
    assert not [*run.problems()], "\n".join([*(case.row for case in run.cases), *run.problems()])
    assert worst_of(together).apart <= ERROR, "\n".join(table_of(together))
