"""A storm of faults over hundreds of concurrent streams: nothing lost, doubled, reordered, hung or leaked."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.report import StormReport, record
from tests.faults.stack import FaultStack, running_stack
from tests.faults.storm import StormPlan, run_storm
from tests.faults.strikes import Fault
from tests.faults.verdicts import Verdict
from tests.support.snapshots import simulated

pytestmark = pytest.mark.faults

ALL = {
    Fault.KILL_WORKER: 5,
    Fault.FREEZE_WORKER: 3,
    Fault.KILL_GATEWAY: 3,
    Fault.DRAIN_GATEWAY: 2,
    Fault.RESTART_REDIS: 2,
}
ROLLED_BACK = {"stream_not_found", "stream_expired", "log_rolled_back"}
"""How a stream may end whose last second Redis has forgotten."""


@pytest.fixture(scope="module")
def stack() -> Iterator[FaultStack]:
    deployment = simulated("storm", engine_args={"ttft_ms": 40, "tpot_ms": 40}, max_num_seqs=256)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-faults-") as folder,
        running_stack(Path(folder), deployment) as stack,
    ):
        yield stack


async def test_every_fault(stack: FaultStack) -> None:
    await stack.wait_until_whole()
    plan = StormPlan(seed=20_261_129, streams=2000, at_once=120, tokens=80, weights=ALL)
    report = StormReport.of(await run_storm(stack, plan))
    print(report, record("storm", report), sep="\n")
    assert report.tally.verdicts[Verdict.EXACT] == plan.streams, report
    assert report.tally.faulted >= 1500
    assert not report.leaks, report.leaks


async def test_redis_forgets_its_last_second(stack: FaultStack) -> None:
    await stack.wait_until_whole()
    plan = StormPlan(
        seed=7, streams=400, at_once=80, tokens=80, weights={Fault.ROLL_BACK_REDIS: 1, Fault.KILL_WORKER: 1}
    )
    report = StormReport.of(await run_storm(stack, plan))
    print(report, record("rollback", report), sep="\n")
    counts = report.tally.verdicts
    assert counts[Verdict.EXACT] + counts[Verdict.FAILED] == plan.streams, report
    assert report.tally.failures.keys() <= ROLLED_BACK
    assert not report.leaks, report.leaks
