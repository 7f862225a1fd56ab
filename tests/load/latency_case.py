"""The latency book beside what clients see, and what it costs a token.

Streams of the simulated engine are read by as many clients, which note when the kernel had each message, however late
they come to read it (`stamped_clients`). When all have ended, and the gateway has filed its slot, percentiles of both
are compared. They differ by the book's own error, and by what gateway and client lose between a look at the clock and
a write: the way of a ping shows how late the gateway was meanwhile.
"""

import asyncio
import time
import timeit
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial

from msgspec import Struct
from redis import Redis

from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.store import slot_of, totals_read
from headrace_wire.latency.summary import SeriesKey, Summary
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.clients import SeenAnswer, StreamClient
from tests.load.measurements import percentile
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.simulated_case import MODEL, Progress
from tests.load.stack import HOST, running_stack
from tests.load.stamped_clients import pinging, stamped_sse_client, stamped_websocket_client

TRANSPORTS: dict[str, Callable[..., AbstractAsyncContextManager[StreamClient]]] = {
    "sse": stamped_sse_client,
    "ws": stamped_websocket_client,
}
SHARES = (0.5, 0.9, 0.95, 0.99)
MEASURES = (Measure.TTFT, Measure.GAP, Measure.TOTAL)
PING_SECONDS = 0.02
COUNTS = 20_000
REPEATS = 25
FILED_SECONDS = 30.0


class LatencyLoad(Struct, frozen=True):
    """What is asked of the system."""

    streams: int = 8
    answers: int = 3
    """Of each stream, one after another."""
    tokens: int = 40
    ttft_ms: float = 300.0
    tpot_ms: float = 50.0

    @property
    def deployment(self) -> DeploymentConfig:
        """The simulated engine, in a child process so that its CPU is not the worker's."""
        engine_args = {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "process": True}
        kind = EngineKind.SIMULATED
        return DeploymentConfig(
            id=MODEL, name=MODEL, model="simulated", engine=kind, engine_args=engine_args, max_num_seqs=self.streams
        )


class Seen(Struct, frozen=True):
    """What clients saw, all in seconds."""

    answers: list[SeenAnswer]
    ways: list[float]
    """Of pings beside them, to the gateway and back."""

    @property
    def durations(self) -> dict[Measure, list[float]]:
        """What the book measures as well."""
        return {
            Measure.TTFT: [answer.ttft_seconds for answer in self.answers],
            Measure.GAP: [gap for answer in self.answers for gap in answer.gaps(0, float("inf"))],
            Measure.TOTAL: [answer.ended_at - answer.asked_at for answer in self.answers],
        }

    @property
    def shared_stamps(self) -> int:
        """Texts of which it is not known when they came."""
        return sum(answer.shared_stamps for answer in self.answers)


class Pair(Struct, frozen=True):
    """A percentile in milliseconds."""

    measure: Measure
    share: float
    client: float
    book: float

    @property
    def off_percent(self) -> float:
        """How far the book's figure is from the client's."""
        return abs(self.client - self.book) / self.client * 100


class LatencyRound(Struct, frozen=True):
    """What one round gave for one transport."""

    transport: str
    pairs: list[Pair]
    way_ms: float
    """A ping's way to the gateway and back, the 99th percentile."""
    us_per_token: float
    """CPU of counting one token, in a loop of this process."""


def run_rounds(load: LatencyLoad, placement: Placement, *, rounds: int, progress: Progress) -> list[LatencyRound]:
    """Runs all rounds on one stack, transports in turn."""
    done = []
    with running_stack(load.deployment, placement) as stack, Redis.from_url(stack.redis_url) as redis:

        def measured(transport: str) -> LatencyRound:
            start = slot_of(time.time())
            connect = partial(TRANSPORTS[transport], HOST, stack.port, model=stack.model, key=stack.api_key)
            seen = asyncio.run(seen_answers(load, [connect] * load.streams, stack.port, stack.api_key))
            summary = _filed(redis, start, len(seen.answers))
            way_ms = percentile(seen.ways, 0.99) * 1000
            return LatencyRound(transport, _pairs(seen, summary), way_ms, us_per_token())

        for transport in TRANSPORTS:
            measured(transport)  # what runs for the first time takes its time before the gateway has read anything
        for number in range(1, rounds + 1):
            for transport in TRANSPORTS:
                progress(f"latency book, round {number} of {rounds}, {transport}")
                done.append(measured(transport))
    return done


def table_rows(rounds: Sequence[LatencyRound]) -> list[Row]:
    """Returns the lines of the table; a column for each transport."""
    by_transport = [[one for one in rounds if one.transport == name] for name in TRANSPORTS]
    rows = [
        Row(
            f"{pair.measure} p{pair.share * 100:g}, client and book, % apart",
            [[one.pairs[index].off_percent for one in column] for column in by_transport],
            at_most=2.0,
        )
        for index, pair in enumerate(rounds[0].pairs)
    ]
    costs = [[one.us_per_token for one in column] for column in by_transport]
    ways = [[one.way_ms for one in column] for column in by_transport]
    return [
        *rows,
        Row("way to the gateway and back p99, ms", ways),
        Row("CPU of the book, us per token", costs, at_most=1.0),
    ]


def us_per_token() -> float:
    """Returns what a count takes in process time: of a gap that is long enough for its logarithm to be taken."""
    from apps.streams.latency_book import LatencyBook  # noqa: PLC0415  Django's settings, for this one figure
    from apps.streams.latency_reading import LatencyReading, Part  # noqa: PLC0415
    from headrace_wire.functions import Functions  # noqa: PLC0415
    from headrace_wire.redis_client import connect  # noqa: PLC0415

    book = LatencyBook(Functions(connect("redis://unused")))
    reading = LatencyReading(book, SeriesKey(MODEL), Part.OWN, arrived_at=time.perf_counter())
    reading.first_text(1)

    def shift() -> None:
        reading._last_at -= 0.0123

    def count() -> None:
        shift()
        reading.text(1, time.monotonic())

    whole, without = (
        min(timeit.repeat(what, number=COUNTS, repeat=REPEATS, timer=time.process_time)) for what in (count, shift)
    )
    return (whole - without) / COUNTS * 1e6


async def seen_answers(
    load: LatencyLoad, connects: Sequence[Callable[[], AbstractAsyncContextManager[StreamClient]]], port: int, key: str
) -> Seen:
    """Has a client for each of `connects`, which begin one after another, within the time of a gap."""
    async with AsyncExitStack() as connections:
        clients = [await connections.enter_async_context(connect()) for connect in connects]
        ways = await connections.enter_async_context(pinging(HOST, port, key=key, every_seconds=PING_SECONDS))

        async def ask(number: int) -> list[SeenAnswer]:
            await asyncio.sleep(number * load.tpot_ms / 1000 / len(clients))
            return [await clients[number].ask(load.tokens) for _ in range(load.answers)]

        answers = [answer for some in await asyncio.gather(*map(ask, range(len(clients)))) for answer in some]
        return Seen(answers, list(ways))


def _filed(redis: "Redis", start: int, answers: int) -> Summary:
    """Returns what the gateway has filed since, once that is all."""
    deadline = time.monotonic() + FILED_SECONDS
    while True:
        summary = Summary()
        for _, packed in totals_read(redis, start=start, end=2**40):
            summary.merge_packed(packed)
        if summary.tally(Tally.REQUESTS) >= answers:
            return summary
        if time.monotonic() > deadline:
            raise TimeoutError(f"{summary.tally(Tally.REQUESTS)} of {answers} answers are in the book")
        time.sleep(0.1)


def _pairs(seen: Seen, summary: Summary) -> list[Pair]:
    durations = seen.durations
    return [
        Pair(
            measure,
            share,
            percentile(durations[measure], share) * 1000,
            summary.histograms[measure].quantile(share) * 1000,
        )
        for measure in MEASURES
        for share in SHARES
    ]
