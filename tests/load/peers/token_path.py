"""What one arm does to tokens on their way, all arms measured by the same client in the same way.

One pass over an arm, on connections that are open already:

1. plain: answers of one token in one piece, one after another;
2. alone: short streams, one after another;
3. whole answers: all ask in the same moment for a short answer each, and read it to its end: first tokens when
   everybody comes at once, gaps, CPU per token with the requests' own share in it;
4. steady: long streams, all begun: CPU per delivered token, gaps, time per token, requests left out;
5. beside: short streams while the others run.

Times are the client's, the engine's own part in them; what an arm adds is told against the direct arm of the same
round.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import psutil
from msgspec import Struct

from headrace_wire.snapshot import DeploymentConfig
from tests.load.clients import SeenAnswer, SseClient, sse_client
from tests.load.measurements import Processes, Spread, machine_cpu_seconds, percentile
from tests.load.peers.arms import MODEL, Arm, deployment
from tests.load.peers.endpoint import HOST

PROBE_TOKENS = 2
PROBERS = 2
WARM_UP_ANSWERS = 3
_ROOM_SECONDS = 1.0


class PathLoad(Struct, frozen=True):
    """What is asked of an arm."""

    streams: int = 32
    tokens_per_second: float = 50.0
    """Of each stream."""
    seconds: float = 4.0
    """Of the steady part."""
    ttft_ms: float = 10.0
    """The engine's own."""
    plain_answers: int = 100
    bursts: int = 2
    burst_tokens: int = 64
    """Of a whole answer."""
    short_streams: int = 40
    beside_seconds: float = 2.5

    @property
    def engine(self) -> DeploymentConfig:
        """The simulated engine that gives it."""
        return deployment(streams=self.streams, ttft_ms=self.ttft_ms, tokens_per_second=self.tokens_per_second)


class PathFigures(Struct, frozen=True):
    """One pass over one arm."""

    arm: str
    plain: Spread
    ttft_alone: Spread
    ttft_burst: Spread
    ttft_beside: Spread
    gap: Spread
    gap_whole: Spread
    """Of whole answers, from their first token on."""
    tpot_ms: float
    """Median of the streams."""
    tokens: int
    """Delivered in the steady part."""
    tokens_per_second: float
    us_per_token: dict[str, float]
    """CPU of each process on the system's core, in the steady part."""
    whole_us_per_token: dict[str, float]
    """The same for whole answers, what a request costs included."""
    rss_mib: dict[str, float]
    idle_rss_mib: dict[str, float]
    """Before the pass."""
    load_us_per_token: float
    """CPU of client and engine."""
    load_core_busy: float
    """Share of a core that they used; near 1 they measure themselves."""
    others_busy: float
    """Cores that processes outside the bench used meanwhile."""

    @property
    def system_us_per_token(self) -> float:
        """All processes of the arm but the engine."""
        return sum(self.us_per_token.values())

    @property
    def system_whole_us_per_token(self) -> float:
        """The same for whole answers."""
        return sum(self.whole_us_per_token.values())


async def measure(load: PathLoad, arm: Arm, awake: list[int]) -> PathFigures:
    """Passes once over an arm."""
    arm.go_on()
    try:
        return await _Pass(load, arm, awake).run()
    finally:
        arm.pause()


class _Pass:
    def __init__(self, load: PathLoad, arm: Arm, awake: list[int]) -> None:
        self._load = load
        self._arm = arm
        self._system = Processes(arm.pids)
        engines = {f"engine {pid}": pid for pid in arm.engine_pids}
        self._load_core = Processes({"client": psutil.Process().pid, **engines})
        self._awake = Processes({f"idle loop {pid}": pid for pid in awake})

    async def run(self) -> PathFigures:
        load, idle_rss = self._load, self._system.rss_mib()
        async with self._connected(1) as (client,):
            await _in_turn(client, count=WARM_UP_ANSWERS if load.short_streams else 0)
            plain = [await client.ask_plain(1) for _ in range(load.plain_answers)]
            alone = await _in_turn(client, count=load.short_streams)
        async with self._connected(load.streams) as clients, self._connected(PROBERS) as probers:
            await asyncio.gather(*[client.ask(PROBE_TOKENS) for client in (*clients, *probers)])
            self._system.take()
            whole = [
                answer
                for _ in range(load.bursts)
                for answer in await asyncio.gather(*[client.ask(load.burst_tokens) for client in clients])
            ]
            whole_cpu = self._system.take()
            steady = await self._streams(clients, probers)
        return msgspec.structs.replace(
            steady,
            plain=Spread.of_seconds(plain),
            ttft_alone=Spread.of_seconds(alone),
            ttft_burst=Spread.of_seconds(answer.ttft_seconds for answer in whole),
            gap_whole=Spread.of_seconds(gap for answer in whole for gap in answer.gaps(0, math.inf)),
            whole_us_per_token=_per_token(whole_cpu, sum(sum(answer.tokens) for answer in whole)),
            idle_rss_mib=idle_rss,
        )

    async def _streams(self, clients: list[SseClient], probers: list[SseClient]) -> PathFigures:
        load, none = self._load, Spread.of_seconds([])
        running = await start_all(clients, load.seconds + load.beside_seconds + _ROOM_SECONDS, load.tokens_per_second)
        begin, machine = time.perf_counter(), machine_cpu_seconds()
        for processes in (self._system, self._load_core, self._awake):
            processes.take()
        await asyncio.sleep(load.seconds)
        end, system, load_core = time.perf_counter(), self._system.take(), sum(self._load_core.take().values())
        ours = load_core + sum(system.values()) + sum(self._awake.take().values())
        others = machine_cpu_seconds() - machine - ours
        rss = self._system.rss_mib()
        beside = [ttft for ttfts in await asyncio.gather(*map(self._beside, probers)) for ttft in ttfts]
        answers = await asyncio.gather(*running)
        tokens = max(1, sum(answer.tokens_within(begin, end) for answer in answers))
        return PathFigures(
            arm=self._arm.name,
            plain=none,
            ttft_alone=none,
            ttft_burst=none,
            ttft_beside=Spread.of_seconds(beside),
            gap=Spread.of_seconds(gap for answer in answers for gap in answer.gaps(begin, end)),
            gap_whole=none,
            tpot_ms=percentile(map(tpot_ms, answers), 0.5),
            tokens=tokens,
            tokens_per_second=tokens / (end - begin),
            us_per_token=_per_token(system, tokens),
            whole_us_per_token={},
            rss_mib=rss,
            idle_rss_mib={},
            load_us_per_token=load_core / tokens * 1e6,
            load_core_busy=load_core / (end - begin),
            others_busy=max(0.0, others / (end - begin)),
        )

    async def _beside(self, prober: SseClient) -> list[float]:
        until, ttfts, chance = time.perf_counter() + self._load.beside_seconds, [], random.Random(1)
        while time.perf_counter() < until:
            ttfts.append((await prober.ask(PROBE_TOKENS)).ttft_seconds)
            # Or every question comes at the same point of the engine's step.
            await asyncio.sleep(chance.uniform(0, 1 / self._load.tokens_per_second))
        return ttfts

    @asynccontextmanager
    async def _connected(self, count: int) -> AsyncIterator[list[SseClient]]:
        async with connections(self._arm, count) as clients:
            yield clients


@asynccontextmanager
async def connections(arm: Arm, count: int) -> AsyncIterator[list[SseClient]]:
    """Opens so many connections to an arm."""
    async with AsyncExitStack() as opened:
        yield [
            await opened.enter_async_context(sse_client(HOST, arm.port, model=MODEL, key=arm.key)) for _ in range(count)
        ]


async def start_all(clients: list[SseClient], seconds: float, per_second: float) -> list[asyncio.Task[SeenAnswer]]:
    """Starts streams that last so long, all at once; returns when every one has its first token."""
    missing, all_there = len(clients), asyncio.Event()

    def first() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            all_there.set()

    max_tokens = math.ceil(seconds * per_second)
    running = [asyncio.create_task(client.ask(max_tokens, first=first)) for client in clients]
    started = asyncio.create_task(all_there.wait())
    await asyncio.wait([started, *running], return_when=asyncio.FIRST_COMPLETED)
    if not started.done():  # an answer that ends before all have begun has failed
        await asyncio.gather(*running)
    return running


async def _in_turn(client: SseClient, *, count: int) -> list[float]:
    return [(await client.ask(PROBE_TOKENS)).ttft_seconds for _ in range(count)]


def _per_token(cpu_seconds: dict[str, float], tokens: int) -> dict[str, float]:
    return {name: used / tokens * 1e6 if tokens else math.nan for name, used in cpu_seconds.items()}


def tpot_ms(answer: SeenAnswer) -> float:
    """Returns the time between two tokens of an answer, on average."""
    return (answer.arrivals[-1] - answer.arrivals[0]) / max(1, sum(answer.tokens) - 1) * 1000
