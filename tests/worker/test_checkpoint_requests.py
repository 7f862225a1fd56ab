"""When a worker asks its engine for checkpoints, of which streams, and when it deletes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from headrace_wire.checkpoint_folders import make_folder, stream_folder
from headrace_wire.messages import Started, StreamState
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.checkpoint_metrics import CheckpointMetrics
from headrace_worker.config import HoldLimits
from headrace_worker.engine import EngineRequest
from headrace_worker.engine_core.checkpoints.counts import CheckpointCounts
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.simulated_engine import SimulatedEngine
from tests.support.snapshots import simulated
from tests.worker.conftest import RunWorker
from tests.worker.desk import Desk

SLOW = {"ttft_ms": 5, "tpot_ms": 5}


@dataclass
class Orders:
    """What engines were told, in order: (`checkpoint` or `abort`, stream id)."""

    told: list[tuple[str, str]] = field(default_factory=list)
    submitted: list[EngineRequest] = field(default_factory=list)

    def of(self, stream_id: str) -> list[str]:
        return [what for what, whom in self.told if whom == stream_id]


class ObservedEngine(SimulatedEngine):
    """Notes its orders."""

    def __init__(self, deployment: DeploymentConfig, orders: Orders) -> None:
        super().__init__(deployment)
        self._orders = orders

    async def submit(self, request: EngineRequest) -> None:
        self._orders.submitted.append(request)
        await super().submit(request)

    async def checkpoint(self, request_ids: Sequence[str]) -> None:
        self._orders.told += [("checkpoint", request_id.partition(".")[0]) for request_id in request_ids]

    async def abort(self, request_ids: Sequence[str]) -> None:
        self._orders.told += [("abort", request_id.partition(".")[0]) for request_id in request_ids]
        await super().abort(request_ids)


async def test_what_is_suspended_and_what_is_handed_over_is_saved_first(desk: Desk, run_worker: RunWorker) -> None:
    orders, deployment = Orders(), simulated("sim", engine_args=SLOW)
    async with run_worker(
        deployment,
        create=lambda deployment: ObservedEngine(deployment, orders),
        limits=HoldLimits(hold_seconds=0.05),
        drain_seconds=0.02,
    ):
        held = await desk.admit(max_tokens=60, window=4)
        cancelled = await desk.admit(max_tokens=4000)
        running = await desk.admit(max_tokens=4000)
        await desk.record_in(held, StreamState.SUSPENDED)
        for stream_id in (cancelled, running):
            await desk.first_token(stream_id)
        await desk.cancel(cancelled)
        await desk.answer(cancelled)
    assert orders.of(held) == orders.of(running) == ["checkpoint", "abort"]
    assert orders.of(cancelled) == ["abort"]
    async with run_worker(deployment, create=lambda deployment: ObservedEngine(deployment, orders)):
        await desk.read_until(running, lambda entry: isinstance(entry, Started) and entry.seq > 0)
        await desk.cancel(running)
    first, again = [request for request in orders.submitted if request.stream_id == running]
    assert (first.tenant_id, first.ahead, again.ahead) == ("t", False, True)


async def test_a_stream_that_has_ended_has_no_checkpoint(desk: Desk, run_worker: RunWorker, tmp_path: Path) -> None:
    settings = CheckpointSettings(directory=str(tmp_path), min_tokens=10)

    def saved(stream_id: str) -> Path:
        folder = stream_folder(tmp_path, "t", stream_id)
        make_folder(folder)
        (folder / "0.kv").write_bytes(b"KV")
        return folder

    async with run_worker(simulated("sim", engine_args=SLOW), checkpoints=settings):
        stream_id = await desk.admit(max_tokens=60, window=10)
        await desk.record_in(stream_id, StreamState.HELD)
        mine, other = saved(stream_id), saved("another")
        await desk.queue.credit([(stream_id, 60)])
        await desk.answer(stream_id)
        await desk.worker_that(lambda _: not mine.exists())
        assert other.exists()


def test_counts_begin_again_with_an_engine() -> None:
    registry = CollectorRegistry()
    metrics = CheckpointMetrics(registry)
    metrics.take(CheckpointCounts(saved=5, saved_bytes=500, loaded=1, refused={"corrupt": 2}))
    metrics.take(CheckpointCounts(saved=7, saved_bytes=700, loaded=1, refused={"corrupt": 2, "limit": 1}))
    metrics.take(CheckpointCounts(saved=1, saved_bytes=100))
    assert registry.get_sample_value("headrace_worker_checkpoints_saved_total") == 8
    assert registry.get_sample_value("headrace_worker_checkpoints_loaded_total") == 1
    assert registry.get_sample_value("headrace_worker_checkpoint_bytes_total", {"direction": "saved"}) == 800
    assert registry.get_sample_value("headrace_worker_checkpoints_refused_total", {"reason": "corrupt"}) == 2
    assert registry.get_sample_value("headrace_worker_checkpoints_refused_total", {"reason": "limit"}) == 1
