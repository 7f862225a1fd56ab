"""Causes put into a running installation are named by the diagnosis, first of all, and no longer once they are gone.

Each deployment is under a steady load and well at first. Latencies are what the gateway files, the fleet is sampled as
Celery does it, the verdict is the page's. Windows are compared with those of the same run, and injections are as strong
as this machine, which is measured first, makes necessary.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from apps.ops.diagnosis.causes import Cause
from tests.support.book_agreement import table_of as pairs_table
from tests.support.cause_acts import deployments_create, gpu_prepare, guarded_key
from tests.support.diagnosis_report import FOLDER, row_keep, row_of, rows_kept, table_of
from tests.support.diagnosis_run import DiagnosisRun
from tests.support.injected_causes import DEPLOYMENTS, LEASE_SECONDS, STALL_SECONDS, Injection, injections
from tests.support.live_stack import LiveStack, running_stack

CAUSE_SECONDS = 270.0
"""For one, on whatever machine: two quiet cores take less than half of it."""
SHORT_SECONDS = 400.0
SHORT = (Cause.CAPACITY, Cause.PREFIX_MISSES, Cause.GUARD)

Tell = Callable[[str], None]


@pytest.fixture(scope="module")
def tell(request: pytest.FixtureRequest) -> Tell:
    """Says something at once, to whoever looks on."""
    manager = request.config.pluginmanager.getplugin("capturemanager")

    def tell(text: str) -> None:
        unseen: AbstractContextManager[None] = manager.global_and_fixture_disabled()
        with unseen:
            print(text, flush=True)

    return tell


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStack]:
    """An installation with all deployments, whose workers come with their causes."""
    folder = tmp_path_factory.mktemp("diagnosis")
    variables = {"PYTHONPATH": gpu_prepare(folder), "HEADRACE_LEASE_SECONDS": str(LEASE_SECONDS)}
    with running_stack(folder, {"idle": {}}, tenant={"stall_timeout_seconds": STALL_SECONDS}, **variables) as running:
        deployments_create(running, DEPLOYMENTS)
        yield running


@pytest.fixture(scope="module")
def causes(stack: LiveStack) -> dict[Cause, Injection]:
    """How each is put in."""
    found = {one.cause: one for one in injections(guarded_key(stack))}
    assert set(found) == set(Cause)
    return found


@pytest.fixture(scope="module")
def _report(tell: Tell) -> Iterator[None]:
    """Shows all causes at the end, those of earlier runs too."""
    yield
    table = "\n".join(table_of(rows_kept()))
    FOLDER.with_suffix(".txt").write_text(f"{table}\n", "utf-8")
    tell(f"\n{table}")


@pytest.fixture
def three(live_stack: LiveStack) -> list[Injection]:
    """Causes that need no installation of their own, and the deployments for them."""
    chosen = [one for one in injections(guarded_key(live_stack)) if one.cause in SHORT]
    deployments_create(live_stack, {one.deployment: DEPLOYMENTS[one.deployment] for one in chosen})
    return chosen


@pytest.mark.alone
async def test_three_causes_at_once_are_told_apart_and_are_gone_when_they_are_gone(
    live_stack: LiveStack, three: list[Injection], tell: Tell
) -> None:
    run = DiagnosisRun(live_stack, three, tell)
    async with asyncio.timeout(SHORT_SECONDS):
        await run.run(compare=False)
    problems = [problem for case in run.cases for problem in case.problems()]
    assert not problems, "\n".join(problems)


@pytest.mark.faults
@pytest.mark.usefixtures("_report")
@pytest.mark.parametrize("cause", list(Cause), ids=str)
async def test_a_cause_is_named_first_and_the_page_agrees_with_its_clients(
    cause: Cause, stack: LiveStack, causes: dict[Cause, Injection], tell: Tell
) -> None:
    run, failure = DiagnosisRun(stack, [causes[cause]], tell), None
    try:
        async with asyncio.timeout(CAUSE_SECONDS):
            await run.run(compare=True)
    except Exception as error:
        failure = error
        raise
    finally:
        row = row_of(run, failure)
        row_keep(row)
        tell("\n".join(["", *table_of([row]), ""]))
    assert not row.problems, "\n".join(row.problems)
    lateness = f"a way to the gateway and back took {row.way * 1e3:.1f} ms: {'late' if row.is_late else 'apart'}"
    assert not row.apart, "\n".join([lateness, *pairs_table(row.pairs)])
