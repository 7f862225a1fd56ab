"""A storm of faults over hundreds of concurrent streams: nothing lost, doubled, reordered, hung or leaked."""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.report import STALL_P95_AT_MOST, StormReport, record
from tests.faults.stack import FaultStack, running_stack
from tests.faults.storm import StormPlan, run_storm
from tests.faults.strikes import Fault
from tests.faults.verdicts import Verdict
from tests.support.snapshots import simulated

pytestmark = pytest.mark.faults

PROCESSES = {Fault.KILL_WORKER: 5, Fault.FREEZE_WORKER: 4, Fault.KILL_GATEWAY: 3, Fault.DRAIN_GATEWAY: 2}
ALL = {**PROCESSES, Fault.RESTART_REDIS: 3}
CALM_SECONDS = (2.0, 4.0)
"""Short enough that some streams lose a second owner, long enough that hardly any loses three without a token: one that
does counts as what kills its owners, and fails.
"""
ROLLED_BACK = {"stream_not_found", "log_rolled_back"}
"""How a stream may end whose last second Redis has forgotten: for who reads it then, and for who comes later."""


@pytest.fixture(scope="module")
def stack() -> Iterator[FaultStack]:
    deployment = simulated("storm", engine_args={"ttft_ms": 40, "tpot_ms": 40}, max_num_seqs=256)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-faults-") as folder,
        running_stack(Path(folder), deployment) as stack,
    ):
        yield stack


async def test_processes_come_and_go(stack: FaultStack) -> None:
    """Of this storm the stalls mean something: Redis stays."""
    plan = StormPlan(seed=1, streams=1800, at_once=100, tokens=80, weights=PROCESSES, calm_seconds=CALM_SECONDS)
    report = await check(stack, "storm", plan)
    assert report.tally.faulted >= 1000
    slow = {row.fault: row.p95 for row in report.stalls if row.p95 > STALL_P95_AT_MOST.get(row.fault, math.inf)}
    assert not slow


async def test_redis_restarts_too(stack: FaultStack) -> None:
    plan = StormPlan(seed=2, streams=800, at_once=100, tokens=80, weights=ALL, calm_seconds=CALM_SECONDS)
    report = await check(stack, "storm with Redis", plan)
    assert report.tally.faulted >= 300


async def check(stack: FaultStack, section: str, plan: StormPlan) -> StormReport:
    await stack.wait_until_whole()
    report = StormReport.of(await run_storm(stack, plan))
    print(report, record(section, report), sep="\n")
    assert report.tally.verdicts[Verdict.EXACT] == plan.streams, f"{report}\n{stack.log}"
    assert not report.leaks, report.leaks
    return report


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
