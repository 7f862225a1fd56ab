"""What this gateway's streams take, counted in memory and filed in Redis every ten seconds (docs/latency.md).

A token costs an index into an array; everything else is counted once a stream. What could not be filed waits and is
filed later, in the slot in which it happened.
"""

import asyncio
import os
import secrets
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import log as logarithm

import structlog
from redis.exceptions import RedisError

from apps.streams import metrics
from apps.streams.traces import UNTRACED, Trace
from headrace_wire.functions import Functions
from headrace_wire.latency.histogram import (
    BUCKETS,
    LAST_BUCKET,
    LONGEST_SECONDS,
    OFFSET,
    PER_LOG,
    SHORTEST_SECONDS,
    LogHistogram,
)
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.store import SLOT_SECONDS, SlotBook, filing_call, slot_of
from headrace_wire.latency.summary import SeriesKey, Summary
from headrace_wire.messages import Ended

log = structlog.get_logger(__name__)

MOST_WAITING = 60
"""Slots that wait for Redis; of more, the oldest is given up."""
SERIES_AT_ONCE = 16
"""Packed in one turn of the event loop; each takes some 0.1 ms."""
FILED_AT_ONCE = 256
"""Series of one call."""
FILE_SECONDS = 5.0
UNCLAIMED_SECONDS = 60.0
"""For which the page that asked for a stream is waited for, before the request is counted without it."""


class TokenCounter:
    """Tokens, and the gaps before them, of all streams of one series."""

    __slots__ = ("_counts", "_touched", "readers", "sum_seconds", "tokens")

    def __init__(self) -> None:
        self._counts = array("I", bytes(4 * BUCKETS))
        self._touched: list[int] = []
        """Buckets that are not 0."""
        self.sum_seconds = 0.0
        self.tokens = 0
        self.readers = 0
        """Who may still count in it."""

    def gap(self, seconds: float, tokens: int) -> None:
        """Count the time between two texts of a stream, and the tokens of the second one."""
        if seconds < SHORTEST_SECONDS:
            bucket = 0
        elif seconds < LONGEST_SECONDS:
            bucket = int(logarithm(seconds) * PER_LOG + OFFSET)
        else:
            bucket = LAST_BUCKET
        counts = self._counts
        count = counts[bucket]
        if not count:
            self._touched.append(bucket)
        counts[bucket] = count + 1
        self.sum_seconds += seconds
        self.tokens += tokens

    def take(self) -> tuple[LogHistogram, int]:
        """Return gaps and tokens since the last time."""
        counts, touched = self._counts, self._touched
        taken = LogHistogram({bucket: counts[bucket] for bucket in touched}, self.sum_seconds), self.tokens
        for bucket in touched:
            counts[bucket] = 0
        touched.clear()
        self.sum_seconds, self.tokens = 0.0, 0
        return taken


@dataclass(frozen=True, slots=True)
class Began:
    """A stream that somebody asked for who will read it over another connection: the chat's page."""

    key: SeriesKey
    arrived_at: float
    """`time.perf_counter()`, as the one below."""
    admitted_at: float
    trace: Trace = UNTRACED
    """Of the request; whoever reads the stream sees its end."""
    is_kept: bool = False
    """It was given a kept answer: no worker computes it."""


@dataclass(frozen=True, slots=True)
class _Sealed:
    """All that was counted in one slot until it was over, or until the gateway stopped."""

    part: str
    slot: int
    series: dict[SeriesKey, Summary]


class LatencyBook:
    """Counts, and files what it has at the end of each slot."""

    def __init__(
        self,
        functions: Functions,
        *,
        clock: Callable[[], float] = time.time,
        ended: Callable[[str, Ended], None] = lambda _deployment, _ended: None,
    ) -> None:
        """`ended` is told once of each end that is counted as a deployment's own."""
        self._functions = functions
        self._clock = clock
        self.ended = ended
        self._id = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._parts = 0
        self._slot = slot_of(clock())
        self._series: dict[SeriesKey, Summary] = {}
        self._counters: dict[SeriesKey, TokenCounter] = {}
        self._began: dict[str, Began] = {}
        self._waiting: deque[SlotBook] = deque()
        self._sealed: deque[_Sealed] = deque()
        self._filing = asyncio.Lock()

    def summary(self, key: SeriesKey) -> Summary:
        """Return what is to be counted in now; not to be kept."""
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = Summary()
        return found

    def counter(self, key: SeriesKey) -> TokenCounter:
        """Return the series' counter of tokens; `readers` has to be lowered by who needs it no more."""
        found = self._counters.get(key)
        if found is None:
            found = self._counters[key] = TokenCounter()
        found.readers += 1
        return found

    def begin(self, stream_id: str, began: Began) -> None:
        """Note a stream that its reader comes for later."""
        self._began[stream_id] = began

    def claim(self, stream_id: str) -> Began | None:
        """Return how a stream began, to the first who reads it here."""
        return self._began.pop(stream_id, None)

    async def run(self) -> None:
        """File until cancelled."""
        while True:
            # A clock that was set back must not keep us from it.
            await asyncio.sleep(min(SLOT_SECONDS, self._slot + SLOT_SECONDS - self._clock()))
            self.seal()
            try:
                await self.file()
            except (RedisError, TimeoutError) as error:
                log.warning("latencies_wait", slots=len(self._waiting), error=str(error))
            except Exception:
                log.exception("latencies_wait", slots=len(self._waiting))

    async def finish(self) -> None:
        """File what is there: the process is about to end."""
        self._count_unclaimed(since=float("inf"))
        self.seal()
        with suppress(RedisError, TimeoutError):
            await self.file()

    def seal(self) -> None:
        """End the slot: what is counted from here on belongs to the one that is now."""
        self._count_unclaimed(since=time.perf_counter() - UNCLAIMED_SECONDS)
        for key in list(self._counters):
            counter = self._counters[key]
            gaps, tokens = counter.take()
            if gaps.counts:
                self.summary(key).histograms[Measure.GAP] = gaps
            if tokens:
                self.summary(key).count(Tally.TOKENS, tokens)
            if not counter.readers:
                del self._counters[key]
        if self._series:
            self._parts += 1
            self._sealed.append(_Sealed(f"{self._id}-{self._parts}", self._slot, self._series))
            self._series = {}
        self._slot = slot_of(self._clock())

    async def file(self) -> None:
        """Give Redis all that was sealed.

        Raises:
            redis.exceptions.RedisError: it refuses; what it did not take is kept for the next time.
            TimeoutError: it does not answer; likewise.
        """
        async with self._filing, asyncio.timeout(FILE_SECONDS):
            while self._sealed:
                packed = await _packed(self._sealed[0])  # cancelled here, it is packed again
                self._sealed.popleft()
                self._waiting += packed
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                metrics.LATENCIES_LOST.inc()
            while self._waiting:
                books = list(_some(self._waiting))
                await self._functions.call_many([filing_call(books)])
                for _ in books:
                    self._waiting.popleft()

    def _count_unclaimed(self, *, since: float) -> None:
        """Count requests whose readers went to another gateway, or nowhere."""
        for stream_id in [name for name, began in self._began.items() if began.arrived_at < since]:
            began = self._began.pop(stream_id)
            self.summary(began.key).count(Tally.REQUESTS)
            began.trace.end()


def _some(waiting: deque[SlotBook]) -> Iterator[SlotBook]:
    """Yield the oldest ones, as many as fit in one call; at least one."""
    series = 0
    for book in waiting:
        series += len(book.series)
        if series > FILED_AT_ONCE and series > len(book.series):
            return
        yield book


async def _packed(sealed: _Sealed) -> list[SlotBook]:
    """Pack a slot by deployment, and let others have their turns meanwhile: there may be many series."""
    totals: dict[str, Summary] = {}
    packed: dict[str, list[tuple[SeriesKey, bytes]]] = {}
    for number, (key, summary) in enumerate(sealed.series.items(), 1):
        totals.setdefault(key.deployment, Summary()).merge(summary)
        packed.setdefault(key.deployment, []).append((key, summary.pack()))
        if not number % SERIES_AT_ONCE:
            await asyncio.sleep(0)
    return [
        SlotBook(sealed.part, sealed.slot, deployment, total.pack(), packed[deployment])
        for deployment, total in totals.items()
    ]
