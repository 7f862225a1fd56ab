"""One reader's gap-free sequence, from what delivery brings and, where that cannot tell, from the log."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Protocol

import structlog

from apps.streams.config_view import Caller
from apps.streams.waiting_room import Waiting
from headrace_wire.errors import HeadraceError, LogRolledBackError, StreamGoneError
from headrace_wire.messages import AnyLogEntry, Delta, Ended, Opened, Started
from headrace_wire.token_log import TokenLog

log = structlog.get_logger(__name__)

QUEUE_LIMIT = 1024
"""Entries that a subscription holds. Full: they are dropped, and read from the log when the reader comes for them."""


class LiveSink(Protocol):
    """Takes tokens in the callback that brings them, while the reader waits: waking its task costs more than they."""

    is_full: bool
    """Whether the client has to take something before more is written."""

    def take(self, entry: Delta, now: float) -> bool:
        """Write an entry's text; False, and nothing was written, where the reader has to do it.

        `now` is `time.monotonic()`, which a token asks for once.
        """


Renew = Callable[["Subscription", Ended], Awaitable[bool]]
"""Takes a subscription that has given nothing and its stream's failure; whether it goes on with another stream."""


class Subscription:
    """One reader's view of one stream: entries in order, each token position exactly once."""

    __slots__ = (
        "_closed",
        "_due",
        "_entries",
        "_epoch",
        "_had_under",
        "_interruption",
        "_is_exact",
        "_log",
        "_loop",
        "_must_read_log",
        "_on_close",
        "_patience",
        "_sink",
        "_timer",
        "_waiter",
        "caller",
        "ended",
        "had_turn",
        "has_all",
        "has_left",
        "is_second",
        "is_sink_full",
        "own_id",
        "position",
        "queue_deadline_seconds",
        "renew",
        "stream_id",
        "waiting",
    )

    def __init__(
        self,
        token_log: TokenLog,
        stream_id: str,
        *,
        after: int,
        read_log: bool,
        on_close: Callable[["Subscription"], None],
        caller: Caller | None = None,
        had_under: int = 0,
        own_id: str = "",
    ) -> None:
        """`on_close` is called once; `caller` is who reads, None for the server itself.

        `own_id`: under which the reader's own end is told, where the stream may go on without it (`flights.own_end`).

        `had_under` is the newest epoch that can have written what the reader has, where the log lacks some of that; 0
        where it has all.
        """
        self.stream_id = stream_id
        self._had_under = had_under
        self._is_exact = True
        """Whether the owner whose entries are looked at writes what any other one writes."""
        self.caller = caller
        self.position = after
        """Position of the last token that the reader has been given."""
        self._on_close = on_close
        self._log = token_log
        self._entries: deque[AnyLogEntry] = deque()
        self._must_read_log = read_log
        self._waiter: asyncio.Future[bool] | None = None
        self._loop = asyncio.get_running_loop()
        self._due = math.inf
        self._patience = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._sink: LiveSink | None = None
        self.is_sink_full = False
        """Whether `next` returned because its sink was full; for the reader to reset."""
        self._epoch = 0
        self._closed = False
        self._interruption: HeadraceError | None = None
        self.had_turn = False
        """Whether its stream was admitted by this reader, and counts against the gateway's soft limit."""
        self.ended = False
        """Whether the terminal entry was given."""
        self.own_id = own_id
        self.has_left = False
        """The caller has cancelled; others may have the stream still."""
        self.has_all = False
        """It was made with all that it gives: nothing goes on elsewhere."""
        self.waiting: Waiting | None = None
        """Its place in the queue, until somebody takes the stream."""
        self.renew: Renew | None = None
        """What may give it another stream where its own fails; called once at most."""
        self.is_second = False
        """Whether it goes on with a stream of its own in the place of a shared one."""
        self.queue_deadline_seconds: float | None = None
        """Of that other stream, from its admission; for the reader to keep, and to reset."""

    @classmethod
    def of_all(
        cls, token_log: TokenLog, stream_id: str, entries: Iterable[AnyLogEntry], *, caller: Caller
    ) -> "Subscription":
        """Return the reading of a stream that has ended, without its log."""
        self = cls(token_log, stream_id, after=0, read_log=False, on_close=_nobody, caller=caller)
        self.has_all = True
        self._entries.extend(entries)
        return self

    def push(self, entry: AnyLogEntry) -> None:
        """Take an entry from delivery; never waits."""
        if len(self._entries) >= QUEUE_LIMIT:
            self._entries.clear()
            self._must_read_log = True
        elif not self._must_read_log:
            self._entries.append(entry)
        self._wake()

    def push_live(self, entry: AnyLogEntry) -> None:
        """Take an entry from delivery, as `push`, or hand it straight to the sink of the reader that waits for it."""
        sink, waiter, seq = self._sink, self._waiter, entry.seq
        if (
            sink is None
            or waiter is None
            or self._entries
            or self._must_read_log
            or type(entry) is not Delta
            or seq - entry.tokens != self.position
            or waiter.done()
        ):
            self.push(entry)
            return
        now = monotonic()  # the loop's own clock, without its call
        try:
            is_taken = sink.take(entry, now)
        except Exception:
            # The reader meets the same, where it is handled; the other readers of this delivery are not to.
            log.exception("live_sink_failed", stream_id=entry.stream_id)
            is_taken = False
        if not is_taken:
            self.push(entry)
            return
        self.position, self._had_under = seq, entry.epoch
        self._due = now + self._patience
        if sink.is_full:
            self.is_sink_full = True
            self.nudge()

    def distrust(self) -> None:
        """Delivery may have lost something: go on from the log."""
        self._entries.clear()
        self._must_read_log = True
        self._wake()

    def interrupt(self, error: HeadraceError) -> None:
        """Make the reader's next call raise `error` once it has what is there."""
        self._interruption = error
        self._wake()

    def nudge(self) -> None:
        """Make a reader that waits return, with nothing."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    def close(self) -> None:
        """Leave the hub; idempotent."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def next(self, patience_seconds: float = math.inf, sink: LiveSink | None = None) -> list[AnyLogEntry]:
        """Return what is there, in order; waits when nothing is. Empty once `patience_seconds` have gone by.

        While it waits, `sink` is given the tokens that it takes; they are never returned. Empty, too, once it is full.

        Raises:
            StreamGoneError: the log has expired under the reader.
            LogRolledBackError: what the reader has was logged anew, otherwise: by an owner that does not continue
                exactly, or in other pieces; or the stream has ended before it.
            HeadraceError: the reader was interrupted (drain).
            redis.exceptions.RedisError: the log had to be read and Redis does not answer; call again.
        """
        loop = self._loop
        due = loop.time() + patience_seconds
        while True:
            if not self._must_read_log:
                ready = self._take()
            else:
                try:
                    async with asyncio.timeout_at(due if due < math.inf else None):
                        ready = await self._read_log()
                except TimeoutError:
                    return []
            if ready:
                return [] if self.renew is not None and await self._is_renewed(ready[-1]) else ready
            if not self._must_read_log and not self._entries:
                if self._interruption is not None:
                    raise self._interruption
                self._sink, self._patience = sink, patience_seconds
                if not await self._wait(loop, due):
                    return []

    async def _is_renewed(self, last: AnyLogEntry) -> bool:
        """Say whether a stream that failed before it gave a token is followed by another one."""
        renew = self.renew
        if renew is None or self.position or not isinstance(last, Ended) or last.error is None:
            return False
        self.renew = None
        return await renew(self, last)

    def become(self, other: "Subscription") -> None:
        """Read on in the place of another subscription, which nobody has read from; `Delivery` tells it so."""
        self.stream_id, self.own_id, self.waiting = other.stream_id, other.own_id, other.waiting
        self.had_turn, self.caller, self.ended = other.had_turn, other.caller, False
        self._had_under, self._is_exact, self._epoch = 0, True, 0
        self.distrust()
        if self.waiting is not None:
            self.waiting.tell(self.nudge)

    async def _wait(self, loop: asyncio.AbstractEventLoop, due: float) -> bool:
        """Wait for an entry; False when there was none until `due`.

        A reader waits once per token and hardly ever in vain, so its timer is not set and cancelled each time: it
        stays, and looks at the newest `due` when it goes off.
        """
        self._due = due
        if self._timer is not None and self._timer.when() > due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and due < math.inf:
            self._timer = loop.call_at(due, self._on_timer, loop)
        self._waiter = loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = self._sink = None

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._due <= loop.time():
            self._waiter.set_result(False)
        else:
            self._timer = loop.call_at(self._due, self._on_timer, loop)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def _take(self) -> list[AnyLogEntry]:
        ready: list[AnyLogEntry] = []
        while self._entries:
            entry = self._entries.popleft()
            if self._leaves_gap(entry):
                self.distrust()
                break
            if self._contradicts(entry):
                return self._ready_before(entry, ready)
            if self._is_news(entry):
                self._advance(entry)
                ready.append(entry)
        return ready

    async def _read_log(self) -> list[AnyLogEntry]:
        self._must_read_log = False  # what is pushed from here on is queued behind what we read
        try:
            entries = await self._log.read(self.stream_id)
        except BaseException:
            self._must_read_log = True
            raise
        if entries is None:
            raise StreamGoneError("The stream's log has expired.")
        ready: list[AnyLogEntry] = []
        for entry in entries:
            if self._contradicts(entry):
                return self._ready_before(entry, ready)
            if self._is_news(entry):
                self._advance(entry)
                ready.append(entry)
        return ready

    def _leaves_gap(self, entry: AnyLogEntry) -> bool:
        if isinstance(entry, Delta):
            return entry.seq - entry.tokens > self.position
        return entry.seq - isinstance(entry, Ended) > self.position

    def _contradicts(self, entry: AnyLogEntry) -> bool:
        """Say whether the reader has something else, more than there is, or a part of the entry: no text can be cut."""
        if isinstance(entry, Started):
            self._is_exact = entry.is_exact
        if isinstance(entry, Ended):
            return entry.seq < self.position
        if not isinstance(entry, Delta) or entry.seq - entry.tokens >= self.position:
            return False
        is_of_another = not self._is_exact and 0 < self._had_under < entry.epoch
        return is_of_another or entry.seq > self.position

    def _ready_before(self, entry: AnyLogEntry, ready: list[AnyLogEntry]) -> list[AnyLogEntry]:
        if ready:
            self.distrust()  # the next call comes back to it
            return ready
        if isinstance(entry, Ended):
            raise LogRolledBackError(
                f"The stream has ended at position {entry.seq - 1}, before your cursor {self.position}."
            )
        raise LogRolledBackError(
            f"What was sent up to position {self.position} was logged anew and may differ (the log has a piece that"
            f" ends at {entry.seq}): read the stream again from its beginning."
        )

    def _is_news(self, entry: AnyLogEntry) -> bool:
        if isinstance(entry, Opened) or self.ended:
            return False
        if isinstance(entry, Started):
            return entry.epoch > self._epoch
        return isinstance(entry, Ended) or entry.seq > self.position

    def _advance(self, entry: AnyLogEntry) -> None:
        if isinstance(entry, Started):
            self._epoch = entry.epoch
        elif isinstance(entry, Ended):
            self.ended = True
        else:
            self.position, self._had_under = entry.seq, entry.epoch


def _nobody(_: Subscription) -> None:
    pass
