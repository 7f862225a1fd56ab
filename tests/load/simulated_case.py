"""The simulated engine behind the whole path: what Headrace adds, and what it costs.

One round, for each transport, on connections that are open already:

1. idle: what the processes use while nothing happens;
2. alone: one short answer after another, nothing else running: added TTFT at one stream;
3. burst: all streams ask in the same moment: added TTFT when everybody comes at once;
4. steady: all streams run: CPU per delivered token, gaps between messages;
5. loaded: short answers beside the running streams: added TTFT under load, CPU of a request.

Added TTFT is what the client waited for its first token, less the engine's own set TTFT.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import psutil
from msgspec import Struct

from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.clients import SeenAnswer, StreamClient, sse_client, websocket_client
from tests.load.measurements import Processes, Spread, machine_cpu_seconds
from tests.load.placement import Placement, kept_awake
from tests.load.stack import HOST, BenchStack, running_stack

MODEL = "bench"
TRANSPORTS: dict[str, Callable[..., AbstractAsyncContextManager[StreamClient]]] = {
    "sse": sse_client,
    "ws": websocket_client,
}
PROBE_TOKENS = 2
PROBERS = 2
"""Connections that ask beside the running streams."""
WARM_UP_ANSWERS = 5

Progress = Callable[[str], None]


class SimulatedLoad(Struct, frozen=True):
    """What is asked of the system."""

    streams: int = 32
    tokens_per_second: float = 50.0
    """Of each stream."""
    seconds: float = 30.0
    """How long the steady part lasts; the others follow from it."""
    ttft_ms: float = 50.0
    """The engine's own."""

    @property
    def short_seconds(self) -> float:
        """Length of the idle part, and a third of the loaded one."""
        return max(0.5, self.seconds / 10)

    @property
    def deployment(self) -> DeploymentConfig:
        """The simulated engine, in a child process so that its CPU is not the worker's."""
        engine_args = {"ttft_ms": self.ttft_ms, "tpot_ms": 1000 / self.tokens_per_second, "process": True}
        return DeploymentConfig(
            id=MODEL,
            name=MODEL,
            model="simulated",
            engine=EngineKind.SIMULATED,
            engine_args=engine_args,
            max_num_seqs=self.streams + PROBERS,
        )


class Costs(Struct, frozen=True):
    """One process over the steady part."""

    us_per_token: float
    """CPU, nothing subtracted."""
    idle_us_per_token: float
    """How much of it the process would have used without any stream."""
    us_per_request: float
    """CPU of one short answer beside the running streams, their tokens' share subtracted."""
    rss_mib: float
    """At the end."""


class SimulatedRound(Struct, frozen=True):
    """What one round gave for one transport."""

    transport: str
    tokens_delivered: int
    """In the steady part."""
    tokens_per_second: float
    answers: int
    """Complete ones: as many tokens arrived as the usage says."""
    added_ttft_alone: Spread
    added_ttft_burst: Spread
    added_ttft_loaded: Spread
    gap: Spread
    costs: dict[str, Costs]
    """By process: gateway, worker (without its engine child), redis."""
    load_core_busy: float
    """Share of a core that client and engine used in the steady part; near 1 they measure themselves."""
    others_busy: float
    """Cores that other processes of the machine used meanwhile; they take caches and turns, so figures rise with it."""


def run_rounds(load: SimulatedLoad, placement: Placement, *, rounds: int, progress: Progress) -> list[SimulatedRound]:
    """Runs all rounds on one stack, transports in turn."""
    done = []
    with kept_awake(placement.system, placement.load) as awake, running_stack(load.deployment, placement) as stack:
        for number in range(1, rounds + 1):
            for transport in TRANSPORTS:
                progress(f"simulated engine, round {number} of {rounds}, {transport}")
                done.append(asyncio.run(_Round(load, stack, transport, awake).run()))
    return done


class _Round:
    def __init__(self, load: SimulatedLoad, stack: BenchStack, transport: str, awake: Sequence[int] = ()) -> None:
        self._load = load
        self._transport = transport
        self._stack = stack
        self._system = Processes(stack.pids)
        own = {f"engine {pid}": pid for pid in stack.engine_pids}
        self._load_core = Processes({"client": psutil.Process().pid, **own})
        self._awake = Processes({f"idle loop {pid}": pid for pid in awake})
        self._answers: list[SeenAnswer] = []

    async def run(self) -> SimulatedRound:
        load = self._load
        async with self._connected(1) as clients:
            await self._ask_in_turn(clients[0], count=WARM_UP_ANSWERS)
            idle = await self._idle()
            alone = await self._ask_in_turn(clients[0], seconds=load.short_seconds)
        async with self._connected(load.streams) as clients, self._connected(PROBERS) as probers:
            await asyncio.gather(*[client.ask(PROBE_TOKENS) for client in (*clients, *probers)])
            return await self._loaded_parts(clients, probers, idle=idle, alone=alone)

    async def _loaded_parts(
        self, clients: list[StreamClient], probers: list[StreamClient], *, idle: dict[str, float], alone: list[float]
    ) -> SimulatedRound:
        load = self._load
        running = await self._start_all(clients)
        begin = time.perf_counter()
        self._system.take()
        self._load_core.take()
        self._awake.take()
        machine = machine_cpu_seconds()
        await asyncio.sleep(load.seconds)
        end = time.perf_counter()
        steady = self._system.take()
        load_core = sum(self._load_core.take().values())
        ours = load_core + sum(steady.values()) + sum(self._awake.take().values())
        others = machine_cpu_seconds() - machine - ours
        probes = [self._ask_in_turn(prober, seconds=3 * load.short_seconds, pausing=True) for prober in probers]
        loaded = [ttft for ttfts in await asyncio.gather(*probes) for ttft in ttfts]
        loaded_end = time.perf_counter()
        beside = self._system.take()
        long = await asyncio.gather(*running)
        self._answers += long
        tokens = sum(answer.tokens_within(begin, end) for answer in long)
        tokens_beside = sum(answer.tokens_within(end, loaded_end) for answer in long)
        rss = self._system.rss_mib()
        costs = {
            name: Costs(
                steady[name] / tokens * 1e6,
                idle[name] * (end - begin) / tokens * 1e6,
                (beside[name] - steady[name] / tokens * tokens_beside) / max(1, len(loaded)) * 1e6,
                rss[name],
            )
            for name in self._stack.pids
        }
        return SimulatedRound(
            self._transport,
            tokens,
            tokens / (end - begin),
            len(self._answers),
            self._added(alone),
            self._added(answer.ttft_seconds for answer in long),
            self._added(loaded),
            Spread.of_seconds(gap for answer in long for gap in answer.gaps(begin, end)),
            costs,
            load_core / (end - begin),
            max(0.0, others / (end - begin)),
        )

    def _added(self, ttft_seconds: Iterable[float]) -> Spread:
        own = self._load.ttft_ms / 1000
        return Spread.of_seconds(ttft - own for ttft in ttft_seconds)

    # ---- the parts

    async def _idle(self) -> dict[str, float]:
        """Returns the share of a core that each process uses while nothing happens."""
        self._system.take()
        begin = time.perf_counter()
        await asyncio.sleep(self._load.short_seconds)
        return {name: used / (time.perf_counter() - begin) for name, used in self._system.take().items()}

    async def _ask_in_turn(
        self, client: StreamClient, *, seconds: float = math.inf, count: float = math.inf, pausing: bool = False
    ) -> list[float]:
        """Asks for short answers one after another; returns their TTFTs."""
        until = time.perf_counter() + seconds
        ttfts: list[float] = []
        rng = random.Random(len(self._answers))
        while time.perf_counter() < until and len(ttfts) < count:
            answer = await client.ask(PROBE_TOKENS)
            self._answers.append(answer)
            ttfts.append(answer.ttft_seconds)
            if pausing:  # or every question comes at the same point of the engine's step
                await asyncio.sleep(rng.uniform(0, 1 / self._load.tokens_per_second))
        return ttfts

    async def _start_all(self, clients: list[StreamClient]) -> list[asyncio.Task[SeenAnswer]]:
        """Starts all streams at once; returns when every one has its first token."""
        load = self._load
        lasts = load.seconds + 3 * load.short_seconds + 1.0
        missing, all_there = len(clients), asyncio.Event()

        def first() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                all_there.set()

        max_tokens = math.ceil(lasts * load.tokens_per_second)
        running = [asyncio.create_task(client.ask(max_tokens, first=first)) for client in clients]
        started = asyncio.create_task(all_there.wait())
        await asyncio.wait([started, *running], return_when=asyncio.FIRST_COMPLETED)
        if not started.done():  # an answer that ends before all have begun has failed
            await asyncio.gather(*running)
        return running

    @asynccontextmanager
    async def _connected(self, count: int) -> AsyncIterator[list[StreamClient]]:
        connect = TRANSPORTS[self._transport]
        async with AsyncExitStack() as connections:
            yield [
                await connections.enter_async_context(
                    connect(HOST, self._stack.port, model=self._stack.model, key=self._stack.api_key)
                )
                for _ in range(count)
            ]
