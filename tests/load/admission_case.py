"""What admission costs while thousands wait, and what those who wait are told and feel.

1. Decision: the Redis function that admits, and the one that claims, with few and with many waiting over 200 tenants,
   one call after another on one connection. Redis' share is its own count, the rest is the way there and back.
2. Neighbours: a modest tenant asks for one short answer after another, while another one asks for all that the engine
   can do, then for ten times as much. The first one's TTFT should not feel it; how long the second one's requests wait
   should lie inside the range that they were told.
"""

import asyncio
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct
from redis.asyncio import Redis

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from headrace_wire.admission import AdmissionTerms, QuotaTerms
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.functions import Functions
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import GenerateRequest, SamplingParams
from headrace_wire.request_queue import RequestQueue
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.clients import sse_client
from tests.load.measurements import Spread
from tests.load.placement import Placement, kept_awake
from tests.load.report import Row
from tests.load.stack import HOST, BenchStack, running_stack
from tests.support.processes import Process
from tests.support.snapshots import KEY_B

MODEL = "fair"
WORKER = "worker-bench"
MINUTE_BUDGET = 10**9
MOST_WAITING = 900
"""Requests of the greedy tenant at a time: below what one gateway serves at once."""
Progress = Callable[[str], None]


class AdmissionLoad(Struct, frozen=True):
    """What is asked of the queue."""

    waiting: tuple[int, ...] = (100, 10_000)
    tenants: int = 200
    calls: int = 2000
    slots: int = 4
    """Of the simulated engine."""
    tpot_ms: float = 20.0
    """So that the engine is what there is too little of, not the gateway's core."""
    answer_tokens: int = 40
    seconds: float = 15.0
    """How long each of the two neighbours is endured."""

    @property
    def capacity(self) -> float:
        """Answers per second."""
        return self.slots / (self.answer_tokens * self.tpot_ms / 1000)

    @property
    def deployment(self) -> DeploymentConfig:
        """The simulated engine."""
        return DeploymentConfig(
            id=MODEL,
            name=MODEL,
            model="simulated",
            engine=EngineKind.SIMULATED,
            engine_args={"ttft_ms": 5, "tpot_ms": self.tpot_ms},
            max_num_seqs=self.slots,
            queue_limit=100_000,
        )


class Decision(Struct, frozen=True):
    """Admission and claim with `waiting` streams in the queue; milliseconds, and microseconds of Redis."""

    waiting: int
    admit: Spread
    claim: Spread
    redis_us_per_admission: float


class AdmissionRound(Struct, frozen=True):
    """One round."""

    decisions: list[Decision]
    modest_ttft: Spread
    """Beside a tenant that asks for what the engine can do."""
    modest_ttft_greedy: Spread
    """Beside one that asks for ten times as much."""
    etas: int
    """Waits that were told how long they may take."""
    etas_inside: float
    """Share of them that did."""


def run_rounds(load: AdmissionLoad, placement: Placement, *, rounds: int, progress: Progress) -> list[AdmissionRound]:
    """Runs all rounds."""
    done = []
    with kept_awake(placement.system, placement.load):
        for number in range(1, rounds + 1):
            progress(f"admission, round {number} of {rounds}")
            decisions = [asyncio.run(_decisions(load, waiting)) for waiting in load.waiting]
            with running_stack(load.deployment, placement) as stack:
                done.append(asyncio.run(_neighbours(load, stack, decisions)))
    return done


def table_rows(load: AdmissionLoad, rounds: Sequence[AdmissionRound]) -> list[Row]:
    """Returns the table's lines."""
    rows = []
    for i, waiting in enumerate(load.waiting):
        each = [one.decisions[i] for one in rounds]
        many = f"{waiting:,} waiting"
        rows += [
            Row(f"admission, {many}, p50 ms", [[one.admit.p50 for one in each]]),
            Row(f"admission, {many}, p99 ms", [[one.admit.p99 for one in each]], at_most=2.0),
            Row(f"  of it Redis, {many}, us", [[one.redis_us_per_admission for one in each]]),
            Row(f"claim of one, {many}, p99 ms", [[one.claim.p99 for one in each]], at_most=2.0),
        ]
    first, last = ([one.decisions[i].redis_us_per_admission for one in rounds] for i in (0, -1))
    ratios = [many / few for few, many in zip(first, last, strict=True)]
    ttft = [one.modest_ttft_greedy.p95 / one.modest_ttft.p95 for one in rounds]
    return [
        *rows,
        Row("Redis per admission, most / fewest waiting", [ratios], at_most=1.5),
        Row("modest tenant's TTFT p95, greedy / fair neighbour", [ttft], at_most=1.1),
        Row("modest tenant's TTFT p95 ms, fair neighbour", [[one.modest_ttft.p95 for one in rounds]]),
        Row("modest tenant's TTFT p95 ms, greedy neighbour", [[one.modest_ttft_greedy.p95 for one in rounds]]),
        Row("waits that were told a time", [[float(one.etas) for one in rounds]]),
        Row("  of them inside the range, share", [[one.etas_inside for one in rounds]], at_least=0.8),
    ]


# ---- the decision


async def _decisions(load: AdmissionLoad, waiting: int) -> Decision:
    async with AsyncExitStack() as cleaning:
        folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        server = EmbeddedRedis.in_directory(find_redis_server(), folder)
        process = cleaning.enter_context(Process(server.command(), name="redis"))
        await asyncio.to_thread(process.wait_for_address, str(server.socket))
        redis = await cleaning.enter_async_context(Redis.from_url(server.url))
        functions = Functions(redis)
        await functions.load()
        queue = RequestQueue(redis, functions)
        await queue.enlist(WORKER, lease_seconds=3600, channels=[])
        chance = random.Random(waiting)
        for start in range(0, waiting, 500):
            count = min(500, waiting - start)
            await functions.call_many([_admission(queue, load, chance) for _ in range(count)])
        return await _measured(load, waiting, queue, functions, redis, chance)


async def _measured(
    load: AdmissionLoad, waiting: int, queue: RequestQueue, functions: Functions, redis: "Redis", chance: random.Random
) -> Decision:
    admitting, claiming, used = [], [], 0.0
    for _ in range(load.calls):
        call = _admission(queue, load, chance)
        before = await _redis_us(redis)
        begin = time.perf_counter()
        await functions.call(*call)
        admitting.append(time.perf_counter() - begin)
        used += await _redis_us(redis) - before
        begin = time.perf_counter()
        (claimed,) = await queue.claim(WORKER, deployment=MODEL, want=1)
        claiming.append(time.perf_counter() - begin)
        del claimed
    return Decision(waiting, Spread.of_seconds(admitting), Spread.of_seconds(claiming), used / load.calls)


def _admission(queue: RequestQueue, load: AdmissionLoad, chance: random.Random) -> Any:
    tenant = f"{chance.randrange(load.tenants):032x}"
    request = GenerateRequest(new_stream_id(), tenant, MODEL, SamplingParams(max_tokens=100), "salt")
    quotas = tuple(
        QuotaTerms(name, 10**8, 10**9, -1, MINUTE_BUDGET, MINUTE_BUDGET, -1, "p", 10**15) for name in (tenant, "key")
    )
    terms = AdmissionTerms(chance.randint(10, 200), 100, quotas=quotas, band=chance.randint(0, 2))
    return queue.admit_call(request, queue_limit=10**6, queue_timeout_seconds=3600, terms=terms)


async def _redis_us(redis: "Redis") -> float:
    stats: Any = await redis.info("commandstats")
    return float(stats.get("cmdstat_fcall", {}).get("usec", 0))


# ---- neighbours


async def _neighbours(load: AdmissionLoad, stack: BenchStack, decisions: list[Decision]) -> AdmissionRound:
    fair, greedy = load.capacity, load.capacity * 10
    beside_fair = await _beside(load, stack, per_second=fair)
    before = await _etas(stack)
    beside_greedy = await _beside(load, stack, per_second=greedy)
    inside, outside = (now - then for now, then in zip(await _etas(stack), before, strict=True))
    told = inside + outside
    return AdmissionRound(decisions, beside_fair, beside_greedy, int(told), inside / told if told else 0.0)


async def _beside(load: AdmissionLoad, stack: BenchStack, *, per_second: float) -> Spread:
    """Returns the modest tenant's TTFT while another one asks `per_second` times a second."""
    asked: list[asyncio.Task[None]] = []
    waiting: set[asyncio.Task[None]] = set()
    until = time.perf_counter() + load.seconds
    modest = asyncio.create_task(_modest(stack, until))
    chance = random.Random(5)
    while time.perf_counter() < until:
        if len(waiting) < MOST_WAITING:
            task = asyncio.create_task(_one(load, stack))
            asked.append(task)
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.sleep(chance.expovariate(per_second))
    ttfts = await modest
    await cancel_and_wait(*waiting)
    await asyncio.gather(*asked, return_exceptions=True)
    if failures := [task for task in asked if not task.cancelled() and task.exception() is not None]:
        failures[0].result()
    return Spread.of_seconds(ttfts)


async def _one(load: AdmissionLoad, stack: BenchStack) -> None:
    async with sse_client(HOST, stack.port, model=MODEL, key=stack.api_key) as client:
        await client.ask(load.answer_tokens)


async def _modest(stack: BenchStack, until: float) -> list[float]:
    ttfts, chance = [], random.Random(6)
    async with sse_client(HOST, stack.port, model=MODEL, key=KEY_B.reveal()) as client:
        while time.perf_counter() < until:
            ttfts.append((await client.ask(2)).ttft_seconds)
            await asyncio.sleep(chance.uniform(0.05, 0.3))
    return ttfts


async def _etas(stack: BenchStack) -> tuple[float, float]:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://{HOST}:{stack.port}/metrics")).text
    inside, outside = (
        sum(float(value) for value in re.findall(rf'headrace_queue_etas_total{{outcome="{name}"}} (\S+)', text))
        for name in ("inside", "outside")
    )
    return inside, outside
