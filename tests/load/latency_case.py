"""The latency book beside what clients see, and what it costs a token.

Streams of the simulated engine are read by as many clients, which note when each message came. When all have ended, and
the gateway has filed its slot, percentiles of both are compared: they may differ by the book's own error, and by
what the way to the client takes, which the book does not see. A client that has to wait for its turn on a busy machine
sees more than there was; `--first` gives it one.
"""

import asyncio
import time
import timeit
from collections.abc import Sequence
from contextlib import AsyncExitStack

from msgspec import Struct
from redis import Redis

from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.store import slot_of, totals_read
from headrace_wire.latency.summary import SeriesKey, Summary
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.clients import SeenAnswer
from tests.load.measurements import percentile
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.simulated_case import MODEL, TRANSPORTS, Progress
from tests.load.stack import HOST, BenchStack, running_stack

SHARES = (0.5, 0.9, 0.95, 0.99)
MEASURES = (Measure.TTFT, Measure.GAP, Measure.TOTAL)
FLOOR_MS = 0.5
"""What the way from one process to the other may take on loopback."""
COUNTS = 20_000
REPEATS = 25
FILED_SECONDS = 30.0


class LatencyLoad(Struct, frozen=True):
    """What is asked of the system."""

    streams: int = 8
    answers: int = 6
    """Of each stream, one after another."""
    tokens: int = 60
    ttft_ms: float = 100.0
    tpot_ms: float = 20.0

    @property
    def deployment(self) -> DeploymentConfig:
        """The simulated engine, in a child process so that its CPU is not the worker's."""
        engine_args = {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "process": True}
        kind = EngineKind.SIMULATED
        return DeploymentConfig(
            id=MODEL, name=MODEL, model="simulated", engine=kind, engine_args=engine_args, max_num_seqs=self.streams
        )


class Pair(Struct, frozen=True):
    """A percentile in milliseconds."""

    measure: Measure
    share: float
    client: float
    book: float

    @property
    def off_percent(self) -> float:
        """How far the client's figure is from the book's, beyond `FLOOR_MS`."""
        return max(0.0, abs(self.client - self.book) - FLOOR_MS) / self.book * 100


class LatencyRound(Struct, frozen=True):
    """What one round gave for one transport."""

    transport: str
    pairs: list[Pair]
    us_per_token: float
    """CPU of counting one token, in a loop of this process."""


def run_rounds(load: LatencyLoad, placement: Placement, *, rounds: int, progress: Progress) -> list[LatencyRound]:
    """Runs all rounds on one stack, transports in turn."""
    done = []
    with running_stack(load.deployment, placement) as stack, Redis.from_url(stack.redis_url) as redis:
        for number in range(1, rounds + 1):
            for transport in TRANSPORTS:
                progress(f"latency book, round {number} of {rounds}, {transport}")
                start = slot_of(time.time())
                seen = asyncio.run(_answers(load, stack, transport))
                summary = _filed(redis, start, len(seen))
                done.append(LatencyRound(transport, _pairs(seen, summary), us_per_token()))
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
    return [*rows, Row("CPU of the book, us per token", costs, at_most=1.0)]


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


async def _answers(load: LatencyLoad, stack: BenchStack, transport: str) -> list[SeenAnswer]:
    connect = TRANSPORTS[transport]
    async with AsyncExitStack() as connections:
        clients = [
            await connections.enter_async_context(connect(HOST, stack.port, model=stack.model, key=stack.api_key))
            for _ in range(load.streams)
        ]

        async def ask(client: int) -> list[SeenAnswer]:
            return [await clients[client].ask(load.tokens) for _ in range(load.answers)]

        return [answer for some in await asyncio.gather(*map(ask, range(load.streams))) for answer in some]


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


def _pairs(seen: Sequence[SeenAnswer], summary: Summary) -> list[Pair]:
    clients = {
        Measure.TTFT: [answer.ttft_seconds for answer in seen],
        Measure.GAP: [gap for answer in seen for gap in answer.gaps(0, float("inf"))],
        Measure.TOTAL: [(answer.ended_at or answer.arrivals[-1]) - answer.asked_at for answer in seen],
    }
    return [
        Pair(
            measure,
            share,
            percentile(clients[measure], share) * 1000,
            summary.histograms[measure].quantile(share) * 1000,
        )
        for measure in MEASURES
        for share in SHARES
    ]
