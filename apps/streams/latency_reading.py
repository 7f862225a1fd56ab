"""What one reader's stream adds to the latency book, and when: the one place that says what counts where.

| reader | counted |
|---|---|
| asked for it, a worker computed it | all measures, all tallies |
| got a kept answer | TTFT (all of it as admission), TOTAL, requests, tokens; of no worker |
| got another caller's stream | TTFT (admission, the rest as flush), GAP, TOTAL, requests, tokens |
| came back to it, or looks on | GAP, tokens |
| was refused by the server (5xx) | a request and an error; a client's own fault counts nowhere |

TTFT, ADMISSION and QUEUE are counted with the first text, GAP and tokens with each text, the rest at the end. Where the
worker's times are not known (the stream was left, or changed its worker) all of TTFT that was neither admission nor
queue counts as PREFILL. TOTAL has answers that came to their own end only; TPOT all that did not fail.

`time.perf_counter()` and `time.monotonic()` are one clock here (Linux's CLOCK_MONOTONIC, as a test says), so that a
text that was stamped by either costs no look at the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from time import perf_counter

from apps.streams.config_view import Caller
from apps.streams.latency_book import LatencyBook, TokenCounter
from apps.streams.services.response_caching import CACHE_OWNER
from apps.streams.services.started import StartedStream
from apps.streams.traces import UNTRACED, Trace
from headrace_wire.errors import DeadlineExceededError, DrainingError, ServerError
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.summary import SeriesKey, Summary
from headrace_wire.messages import Ended, Started, StreamState
from headrace_wire.timing import tpot_seconds

_WHOLE = frozenset({StreamState.FINISHED, StreamState.REPLACED})


class Part(StrEnum):
    """What a reader has to do with a stream."""

    OWN = "own"
    """It asked for it, and a worker computes it."""
    KEPT = "kept"
    """It asked, and was given a kept answer."""
    SHARED = "shared"
    """It asked for what another caller has computed just now."""
    RETURNING = "returning"
    """It came back to it, or looks on."""


def part_of(started: StartedStream) -> Part:
    """Return what the reader of a stream that it has asked for has to do with it."""
    if started.is_replay:
        return Part.RETURNING
    if started.is_shared:
        return Part.SHARED
    return Part.KEPT if started.subscription.has_all else Part.OWN


def series_of(caller: Caller, deployment: str) -> SeriesKey:
    """Return the series of a caller's streams before a worker has them."""
    return SeriesKey(deployment, caller.tenant.id, caller.api_key.id if caller.api_key is not None else "")


@contextmanager
def refusals_counted(book: LatencyBook, key: SeriesKey) -> Iterator[None]:
    """Count a request that cannot be begun, if that is the server's fault; one that drains sends callers elsewhere."""
    try:
        yield
    except DrainingError:
        raise
    except ServerError:
        summary = book.summary(key)
        summary.count(Tally.REQUESTS)
        summary.count(Tally.ERRORS)
        raise


class LatencyReading:
    """One reader of one stream."""

    __slots__ = (
        "_admission", "_attempt", "_book", "_counter", "_has_timed_out", "_key", "_last_at", "_part", "_queue_seconds",
        "_ttft", "arrived_at",
    )  # fmt: skip

    def __init__(
        self, book: LatencyBook, key: SeriesKey, part: Part, *, arrived_at: float, admitted_at: float | None = None
    ) -> None:
        """Both moments are `time.perf_counter()`; `admitted_at` is now where it is not given."""
        self.arrived_at = arrived_at
        self._book = book
        self._key = key
        self._part = part
        self._admission = (perf_counter() if admitted_at is None else admitted_at) - arrived_at
        self._queue_seconds = 0.0
        self._attempt = 1
        self._ttft: float | None = None
        self._last_at = 0.0
        self._counter: TokenCounter | None = None
        self._has_timed_out = False

    @property
    def _summary(self) -> Summary:
        return self._book.summary(self._key)

    def started(self, entry: Started) -> None:
        """Note who writes from here on."""
        self._attempt = entry.attempt
        if entry.attempt == 1:
            self._queue_seconds = entry.queue_time
        if entry.owner not in (self._key.worker, CACHE_OWNER):
            self._leave_counter()
            self._key = SeriesKey(self._key.deployment, self._key.tenant_id, self._key.key_id, entry.owner)

    def first_text(self, tokens: int, at: float | None = None) -> None:
        """Count the first text, handed to the transport at `at` by `time.perf_counter()`; now where it is not given."""
        if at is None:
            at = perf_counter()
        self._counter = self._book.counter(self._key)
        self._counter.tokens += tokens
        self._last_at = at
        if self._part is Part.RETURNING:
            return
        self._ttft = at - self.arrived_at
        summary = self._summary
        summary.histogram(Measure.TTFT).add(self._ttft)
        if self._part is Part.KEPT:
            self._admission = self._ttft
        summary.histogram(Measure.ADMISSION).add(self._admission)
        if self._part is Part.OWN:
            summary.histogram(Measure.QUEUE).add(self._queue_seconds)

    def text(self, tokens: int, now: float) -> None:
        """Count one more text, sent at `now` by either clock: the caller has asked it already."""
        counter = self._counter
        if counter is None:
            counter = self._counter = self._book.counter(self._key)
        counter.gap(now - self._last_at, tokens)
        self._last_at = now

    def stalled(self) -> None:
        """Count that the client does not take what is there."""
        self._summary.count(Tally.STALLS)

    def timed_out(self) -> None:
        """Count that a deadline was passed: of the stream, or of a client that took nothing. Again is harmless."""
        if not self._has_timed_out:
            self._has_timed_out = True
            self._summary.count(Tally.TIMEOUTS)

    def close(self, ended: Ended | None, untold_tokens: int, at: float | None = None) -> None:
        """Count what is known at the end; `untold_tokens` were logged without any text behind them.

        `at` is when the end was handed to the transport, by `time.perf_counter()`; now where it is not given.
        """
        summary = self._summary
        summary.count(Tally.TOKENS, untold_tokens)
        self._leave_counter()
        if self._part is Part.RETURNING:
            return
        summary.count(Tally.REQUESTS)
        if self._ttft is not None:
            self._count_phases(summary, self._ttft, ended)
        if ended is None:
            return
        if ended.state in _WHOLE:
            summary.histogram(Measure.TOTAL).add((perf_counter() if at is None else at) - self.arrived_at)
        elif ended.state is StreamState.FAILED:
            summary.count(Tally.ERRORS)
            if ended.error is not None and ended.error.code == DeadlineExceededError.code:
                self.timed_out()
        if self._part is Part.OWN:
            self._count_usage(summary, ended)
            self._book.ended(self._key.deployment, ended)

    def _count_phases(self, summary: Summary, ttft: float, ended: Ended | None) -> None:
        """Count the phases after the first ones; with these they are TTFT, whatever clocks say."""
        rest = max(0.0, ttft - self._admission)
        if self._part is Part.SHARED:
            summary.histogram(Measure.FLUSH).add(rest)
        elif self._part is Part.OWN:
            rest = max(0.0, rest - self._queue_seconds)
            if ended is None or self._attempt > 1 or not ended.timings.prefill_time:
                summary.histogram(Measure.PREFILL).add(rest)
                return
            prefill = min(rest, ended.timings.prefill_time)
            guard = min(rest - prefill, ended.timings.guard_time)
            summary.histogram(Measure.PREFILL).add(prefill)
            summary.histogram(Measure.GUARD).add(guard)
            summary.histogram(Measure.FLUSH).add(rest - prefill - guard)

    def _count_usage(self, summary: Summary, ended: Ended) -> None:
        usage = ended.usage
        summary.count(Tally.PROMPT_TOKENS, usage.prompt_tokens)
        summary.count(Tally.CACHED_TOKENS, usage.cached_tokens)
        tpot = tpot_seconds(ended.timings.decode_time, usage.completion_tokens)
        if tpot and ended.state is not StreamState.FAILED:
            summary.histogram(Measure.TPOT).add(tpot)

    def _leave_counter(self) -> None:
        if self._counter is not None:
            self._counter.readers -= 1
            self._counter = None


def reading_of_resumed(
    book: LatencyBook, key: SeriesKey, stream_id: str, *, arrived_at: float
) -> tuple[LatencyReading, Trace]:
    """Return the reading of a stream by its id: of the chat's page it is the first one, which was waited for.

    Its request's trace comes along, which the caller ends; others have none.
    """
    began = book.claim(stream_id)
    if began is None:
        return LatencyReading(book, key, Part.RETURNING, arrived_at=arrived_at), UNTRACED
    part = Part.KEPT if began.is_kept else Part.OWN
    own = LatencyReading(book, began.key, part, arrived_at=began.arrived_at, admitted_at=began.admitted_at)
    return own, began.trace
