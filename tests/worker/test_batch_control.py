"""A worker whose batch moves: what it claims, and what it says of both rules."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace_wire.batch import BatchControl, BatchReport
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker import batch_control
from tests.support.snapshots import publish_snapshot, simulated, snapshot
from tests.worker.conftest import RunWorker
from tests.worker.desk import Desk

CROWDED = {"ttft_ms": 5, "tpot_ms": 2, "tpot_us_each": 5000}
"""A step takes 2 ms and 5 more for each stream in it."""


@pytest.fixture(autouse=True)
def short_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_control, "DECIDE_SECONDS", 0.2)


def crowded(control: BatchControl, **fields: Any) -> DeploymentConfig:
    goals: dict[str, Any] = {"batch_min": 2, "batch_tpot_goal_seconds": 0.025, "batch_ttft_goal_seconds": 60.0}
    return simulated("sim", engine_args=CROWDED, max_num_seqs=16, batch_control=control, **{**goals, **fields})


async def reported(desk: Desk, found: Callable[[BatchReport], bool]) -> BatchReport:
    info = await desk.worker_that(lambda info: info.batch is not None and found(info.batch))
    assert info.batch is not None
    return info.batch


async def test_too_slow_tokens_make_the_batch_smaller(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(crowded(BatchControl.OBJECTIVES)):
        ids = [await desk.admit(max_tokens=400) for _ in range(24)]
        report = await reported(desk, lambda report: report.limit <= 4)
        assert report.limit == report.objectives
        for stream_id in ids:
            await desk.cancel(stream_id)


async def test_shadow_says_what_the_rules_would_do_and_does_nothing(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(crowded(BatchControl.SHADOW)):
        ids = [await desk.admit(max_tokens=400) for _ in range(24)]
        report = await reported(desk, lambda report: report.objectives <= 4)
        assert report.limit == 16
        assert report.classic == 16  # the KV cache is nearly empty
        for stream_id in ids:
            await desk.cancel(stream_id)


async def test_a_full_engine_halves_by_the_classic_rule(desk: Desk, run_worker: RunWorker) -> None:
    small = {"ttft_ms": 1, "tpot_ms": 20, "kv_tokens": 1600}
    deployment = simulated("sim", engine_args=small, max_num_seqs=16, batch_control=BatchControl.CLASSIC)
    async with run_worker(deployment):
        ids = [await desk.admit(list(range(85)), max_tokens=200) for _ in range(16)]
        report = await reported(desk, lambda report: report.limit < 16)
        assert report.limit == report.classic
        for stream_id in ids:
            await desk.cancel(stream_id)
        assert (await reported(desk, lambda report: report.limit == 16)).limit == 16


async def test_switched_off_it_is_the_largest_again(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(crowded(BatchControl.OBJECTIVES)):
        ids = [await desk.admit(max_tokens=400) for _ in range(16)]
        await reported(desk, lambda report: report.limit < 16)
        await publish_snapshot(desk.redis, snapshot(2, crowded(BatchControl.OFF)))
        assert await reported(desk, lambda report: report.limit == 16) == BatchReport(16)
        for stream_id in ids:
            await desk.cancel(stream_id)


async def test_the_registration_says_it(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(crowded(BatchControl.SHADOW, batch_max=8)):
        info = await desk.worker_that(lambda info: info.batch is not None)
        assert info.batch == BatchReport(8, 8, 8)
