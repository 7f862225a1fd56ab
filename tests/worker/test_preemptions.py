"""What a worker says of requests that lost their KV cache while they ran."""

import asyncio

from prometheus_client import CollectorRegistry

from headrace_worker.engine import EngineStats
from headrace_worker.metrics import WorkerMetrics
from tests.support.snapshots import simulated
from tests.worker.conftest import RunWorker
from tests.worker.desk import Desk


async def test_a_worker_reports_preemptions_and_no_stream_loses_a_token(desk: Desk, run_worker: RunWorker) -> None:
    """Three streams of 50 + 100 tokens have 300 tokens of KV cache."""
    crowded = simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 2, "kv_tokens": 300}, max_num_seqs=4)
    streams = [await desk.admit(list(range(50)), max_tokens=100) for _ in range(3)]
    async with run_worker(crowded):  # so that it has all of them at once
        for answer in await asyncio.gather(*map(desk.answer, streams)):
            answer.check_order()
            assert answer.end.usage.completion_tokens == 100
        await desk.worker_that(lambda info: info.preemptions > 0)


def test_an_engine_that_starts_again_counts_on() -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    for counts in ((0, 3, 5), (1, 2)):
        metrics.engine_started("ready")
        for count in counts:
            metrics.engine_load(0, EngineStats(num_preemptions=count))
    assert metrics.preemptions == 7
    assert registry.get_sample_value("headrace_worker_preemptions_total") == 7
