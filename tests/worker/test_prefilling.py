"""Prefixes computed ahead of requests, at engines: who finds them afterwards, and that nobody waits for them."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from headrace_wire import codec, redis_keys
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.functions import Reply
from headrace_wire.messages import CancelPrefill, Prefill, PrefillPurpose, StreamState
from headrace_wire.prefill_reports import PrefillReport
from headrace_worker.prefill_metrics import PrefillMetrics
from headrace_worker.prefilling import Prefilling
from tests.support.snapshots import simulated
from tests.worker.conftest import RunWorker
from tests.worker.desk import WAIT_SECONDS, Desk
from tests.worker.engines import EngineBench, contract_deployment, started
from tests.worker.jammed_engine import Jam, JammedEngine

pytestmark = pytest.mark.filterwarnings("ignore")

SLOW = {"ttft_ms": 60_000}


def prefill(ids: Sequence[int], *, name: str = "p", salt: str = "salt", seconds: float = 60.0) -> Prefill:
    """Return a prompt cache's prefill."""
    expires_at_ms = int((time.time() + seconds) * 1000)
    return Prefill(name, "t", salt, codec.pack_token_ids(ids), expires_at_ms, PrefillPurpose.PROMPT_CACHE)


@dataclass
class Bench:
    """Prefilling beside an engine that tests use, too."""

    engines: EngineBench
    is_quiet: bool = True
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    reports: "asyncio.Queue[PrefillReport]" = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.computed: list[int] = []
        self.prefilling = Prefilling(
            PrefillMetrics(self.registry),
            is_quiet=lambda: self.is_quiet,
            report=self._take,
            computed=lambda _salt, ids: self.computed.append(len(ids)),
        )

    async def _take(self, _prefill: Prefill, report: PrefillReport) -> None:
        self.reports.put_nowait(report)

    async def report(self) -> PrefillReport:
        """Wait for the next end."""
        async with asyncio.timeout(60):
            return await self.reports.get()

    def ended(self, outcome: str) -> float:
        """Return how many came to this end."""
        labels = {"purpose": "prompt_cache", "outcome": outcome}
        return self.registry.get_sample_value("headrace_worker_prefills_ended_total", labels) or 0.0


@asynccontextmanager
async def prefilling_on(engines: EngineBench) -> AsyncIterator[Bench]:
    bench = Bench(engines)
    engines.listeners.append(bench.prefilling.feed)
    task = asyncio.create_task(bench.prefilling.run(engines.engine, engines.info))
    try:
        yield bench
    finally:
        await cancel_and_wait(task)
        engines.listeners.remove(bench.prefilling.feed)


# ---- a simulated engine that never comes to an end


@pytest_asyncio.fixture
async def stuck() -> AsyncIterator[Bench]:
    async with (
        started("simulated", simulated("sim", engine_args=SLOW)) as engines,
        prefilling_on(engines) as bench,
    ):
        yield bench


async def test_it_leaves_the_engine_when_a_request_comes_and_returns_later(stuck: Bench) -> None:
    stuck.prefilling.put(prefill(range(64)))
    await stuck.engines.until_stats(lambda stats: stats.num_requests_running == 1)
    stuck.is_quiet = False
    stuck.prefilling.give_way()
    await stuck.engines.idle()
    stuck.prefilling.consider()
    await asyncio.sleep(0)
    await stuck.engines.idle()
    stuck.is_quiet = True
    stuck.prefilling.consider()
    await stuck.engines.until_stats(lambda stats: stats.num_requests_running == 1)


async def test_it_is_cancelled_in_the_engine_and_in_the_queue(stuck: Bench) -> None:
    stuck.prefilling.put(prefill(range(64), name="one"))
    stuck.prefilling.put(prefill(range(32), name="two"))
    await stuck.engines.until_stats(lambda stats: stats.num_requests_running == 1)
    stuck.prefilling.cancel("two")
    stuck.prefilling.cancel("one")
    stuck.prefilling.cancel("unknown")
    await stuck.engines.idle()
    assert stuck.ended("cancelled") == 2


async def test_nothing_is_begun_while_others_need_the_engine_and_it_expires(stuck: Bench) -> None:
    stuck.is_quiet = False
    stuck.prefilling.put(prefill(range(64), seconds=-1))
    stats = await stuck.engines.until_stats(lambda _: stuck.ended("expired") == 1)
    assert stats.num_requests_running == 0


async def test_what_cannot_fit_is_dropped(stuck: Bench) -> None:
    stuck.prefilling.put(prefill(range(4095)))
    await stuck.engines.until_stats(lambda _: stuck.ended("refused") == 1)


# ---- in a worker


async def test_a_worker_computes_it_and_reports(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim")):
        (info,) = await desk.workers()
        key = redis_keys.prefix_warmth_key("p")
        await desk.queue.tell([(f"@{info.incarnation}", prefill(range(640)))])
        await desk.worker_that(lambda _: True)
        async with asyncio.timeout(WAIT_SECONDS), desk.redis.pubsub() as channel:
            await channel.subscribe(redis_keys.fleet_channel())
            while not (raw := await _hget(desk, key, info.incarnation)):
                await channel.get_message(timeout=0.02)
    report = codec.decode(raw, PrefillReport)
    assert (report.tokens, report.cached_tokens + report.computed_tokens) == (640, 640)


async def test_a_worker_without_a_free_place_does_not_begin(desk: Desk, run_worker: RunWorker) -> None:
    """One stream runs where one may: the spare place of the engine is not for prefixes."""
    async with run_worker(simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 5}, max_num_seqs=1)) as worker:
        (info,) = await desk.workers()
        stream_id = await desk.admit(max_tokens=4000)
        await desk.first_token(stream_id)
        await desk.queue.tell([(f"@{info.incarnation}", prefill(range(64)))])
        await desk.queue.tell([(f"@{info.incarnation}", prefill(range(32), name="q", seconds=-1))])
        await _until_metric(desk, worker, "headrace_worker_prefills_ended_total", outcome="expired")
        assert not _metric(worker, "headrace_worker_prefills_begun_total")
        await desk.cancel(stream_id)
        assert (await desk.answer(stream_id)).end.state is StreamState.CANCELLED
        await _until_metric(desk, worker, "headrace_worker_prefills_ended_total", outcome="done")


async def test_a_stream_takes_the_engine_from_it(desk: Desk, run_worker: RunWorker) -> None:
    jam = Jam()
    async with run_worker(create=lambda deployment: JammedEngine(deployment, jam)) as worker:
        (info,) = await desk.workers()
        await desk.queue.tell([(f"@{info.incarnation}", prefill(range(64)))])
        await _until_metric(desk, worker, "headrace_worker_prefills_begun_total")
        jam.is_on = False  # of what comes now: that one never comes to an end
        stream_id = await desk.admit(max_tokens=3)
        answer = await desk.answer(stream_id)
        assert answer.end.state is StreamState.FINISHED
        assert _metric(worker, "headrace_worker_prefills_given_way_total") == 1
        await _until_metric(desk, worker, "headrace_worker_prefills_ended_total", outcome="done")


async def test_a_worker_stops_it_when_told(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(create=lambda deployment: JammedEngine(deployment, Jam())) as worker:
        (info,) = await desk.workers()
        await desk.queue.tell([(f"@{info.incarnation}", prefill(range(64)))])
        await _until_metric(desk, worker, "headrace_worker_prefills_begun_total")
        await desk.queue.tell([(f"@{info.incarnation}", CancelPrefill("p"))])
        await _until_metric(desk, worker, "headrace_worker_prefills_ended_total", outcome="cancelled")


async def _hget(desk: Desk, key: str, field: str) -> bytes | None:
    raw: Reply = await desk.redis.hget(key, field)
    return bytes(raw) if raw else None


def _metric(worker: object, name: str, **labels: str) -> float:
    registry: CollectorRegistry = worker._metrics._registry  # type: ignore[attr-defined]
    return registry.get_sample_value(name, {"purpose": "prompt_cache", **labels}) or 0.0


async def _until_metric(desk: Desk, worker: object, name: str, **labels: str) -> None:
    """Wait for a count. It changes silently, so this looks again and again."""
    async with asyncio.timeout(WAIT_SECONDS), desk.redis.pubsub() as channel:
        await channel.subscribe(redis_keys.fleet_channel())
        while not _metric(worker, name, **labels):
            await channel.get_message(timeout=0.02)


# ---- the real engine

TOKENS = 256
IDS = list(range(100, 100 + TOKENS))


@pytest.mark.engine
@pytest.mark.asyncio(loop_scope="function")
async def test_requests_of_the_same_partition_find_it(request: pytest.FixtureRequest) -> None:
    deployment = contract_deployment("vllm", lambda: request.getfixturevalue("tiny_model"))
    async with started("vllm", deployment) as engines, prefilling_on(engines) as bench:
        bench.prefilling.put(prefill(IDS))
        cold = await bench.report()
        assert (cold.tokens, cold.cached_tokens, cold.computed_tokens) == (TOKENS, 0, TOKENS)
        bench.prefilling.put(prefill(IDS))
        warm = await bench.report()
        assert (warm.cached_tokens, warm.computed_tokens) == (TOKENS, 0)
        ours = await engines.submit([*IDS, 7, 8, 9], max_tokens=2)
        others = await engines.submit([*IDS, 7, 8, 9], max_tokens=2, cache_salt="of another tenant")
        await engines.finished(ours, others)
        assert engines.cached_tokens[ours] == TOKENS
        assert engines.cached_tokens[others] == 0
        await _takes_no_memory_from_held_ones(bench)


async def _takes_no_memory_from_held_ones(bench: Bench) -> None:
    engines = bench.engines
    held = [await engines.submit([*range(10 * n, 10 * n + 440)], credit=1) for n in range(1, 4)]
    await engines.held(*held)
    bench.prefilling.put(prefill(range(1000, 1480)))
    await engines.until_stats(lambda stats: stats.num_requests_waiting == 1)
    requests = [await engines.submit([5, 6, 7], max_tokens=8) for _ in range(2)]
    await engines.finished(*requests)
    stats = await engines.engine.stats()
    assert stats.num_requests_waiting == 1, "it waits for memory"
    assert all(one.kv_cache_usage > 0 for one in stats.held)
    await engines.engine.abort(held)
    assert (await bench.report()).tokens == 480
