"""Delivery: what workers hand to this gateway, sorted to the subscriptions that wait for it.

One blocking read serves all streams; a subscription turns what arrives into a gap-free sequence, and re-reads the log
where delivery alone cannot tell (a trimmed delivery stream, a reconnect, its own full queue, a resume).
"""

import asyncio
from collections import deque

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from apps.streams.limits import StreamLimit
from headrace_wire import codec, redis_keys
from headrace_wire.errors import HeadraceError, StreamGoneError
from headrace_wire.functions import Reply
from headrace_wire.messages import AnyLogEntry, Delta, Ended, Opened, Started
from headrace_wire.token_log import TokenLog

log = structlog.get_logger(__name__)

QUEUE_LIMIT = 1024
"""Entries that a subscription holds. Full: they are dropped, and read from the log when the reader comes for them."""

BLOCK_MS = 5000
RECONNECT_SECONDS = 0.2


class Subscription:
    """One reader's view of one stream: entries in order, each token position exactly once."""

    __slots__ = (
        "_closed",
        "_entries",
        "_epoch",
        "_hub",
        "_interruption",
        "_log",
        "_must_read_log",
        "_waiter",
        "ended",
        "position",
        "stream_id",
    )

    def __init__(self, hub: "Delivery", token_log: TokenLog, stream_id: str, *, after: int, read_log: bool) -> None:
        self.stream_id = stream_id
        self.position = after
        """Position of the last token that the reader has been given."""
        self._hub = hub
        self._log = token_log
        self._entries: deque[AnyLogEntry] = deque()
        self._must_read_log = read_log
        self._waiter: asyncio.Future[None] | None = None
        self._epoch = 0
        self._closed = False
        self._interruption: HeadraceError | None = None
        self.ended = False
        """Whether the terminal entry was given."""

    def push(self, entry: AnyLogEntry) -> None:
        """Take an entry from delivery; never waits."""
        if len(self._entries) >= QUEUE_LIMIT:
            self._entries.clear()
            self._must_read_log = True
        elif not self._must_read_log:
            self._entries.append(entry)
        self._wake()

    def distrust(self) -> None:
        """Delivery may have lost something: go on from the log."""
        self._entries.clear()
        self._must_read_log = True
        self._wake()

    def interrupt(self, error: HeadraceError) -> None:
        """Make the reader's next call raise `error` once it has what is there."""
        self._interruption = error
        self._wake()

    def close(self) -> None:
        """Leave the hub; idempotent."""
        if not self._closed:
            self._closed = True
            self._hub.remove(self)

    async def next(self) -> list[AnyLogEntry]:
        """Return what is there, at least one entry, in order; waits when nothing is.

        Raises:
            StreamGoneError: the log has expired under the reader.
            HeadraceError: the reader was interrupted (drain).
            redis.exceptions.RedisError: the log had to be read and Redis does not answer; call again.
        """
        while True:
            ready = await self._read_log() if self._must_read_log else self._take()
            if ready:
                return ready
            if not self._must_read_log and not self._entries:
                if self._interruption is not None:
                    raise self._interruption
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> list[AnyLogEntry]:
        ready: list[AnyLogEntry] = []
        while self._entries:
            entry = self._entries.popleft()
            if self._leaves_gap(entry):
                self.distrust()
                break
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
        ready = []
        for entry in entries:
            if self._is_news(entry):
                self._advance(entry)
                ready.append(entry)
        return ready

    def _leaves_gap(self, entry: AnyLogEntry) -> bool:
        if isinstance(entry, Delta):
            return entry.seq - entry.tokens > self.position
        return entry.seq - isinstance(entry, Ended) > self.position

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
            self.position = entry.seq


class Delivery:
    """Reads this gateway's delivery stream and hands each entry to its subscriptions."""

    def __init__(self, redis: "Redis", token_log: TokenLog, limit: StreamLimit) -> None:
        """Use `redis`, a client of its own: the read blocks its connection."""
        self._redis = redis
        self._log = token_log
        self._limit = limit
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._last = (1, 0)
        self.entries_delivered = 0

    def __len__(self) -> int:
        return sum(map(len, self._subscriptions.values()))

    def is_read(self, stream_id: str) -> bool:
        """Say whether a subscription to the stream is open here."""
        return stream_id in self._subscriptions

    def stream_ids(self) -> list[str]:
        """Return the streams that somebody reads here."""
        return list(self._subscriptions)

    def subscribe(self, stream_id: str, *, after: int = 0, read_log: bool = False) -> Subscription:
        """Return a subscription that continues after position `after`.

        Raises ServerOverloadedError when this gateway has as many readers as it may.

        `read_log` says that the stream may have entries already; the gateway must have been attached to it before.
        """
        self._limit.enter()
        subscription = Subscription(self, self._log, stream_id, after=after, read_log=read_log)
        self._subscriptions.setdefault(stream_id, []).append(subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Forget a subscription (called by its `close`)."""
        self._limit.leave()
        readers = self._subscriptions[subscription.stream_id]
        readers.remove(subscription)
        if not readers:
            del self._subscriptions[subscription.stream_id]

    def interrupt_all(self, error: HeadraceError) -> None:
        """End every reader with `error`: this process is about to end."""
        for readers in self._subscriptions.values():
            for subscription in readers:
                subscription.interrupt(error)

    def distrust_all(self) -> None:
        """Something may have been lost: every subscription goes on from its log."""
        for readers in self._subscriptions.values():
            for subscription in readers:
                subscription.distrust()

    async def run(self, gateway: str) -> None:
        """Read `gateway`'s delivery stream until cancelled; enlisting has created it, with one entry."""
        key = redis_keys.delivery_key(gateway)
        self._last = (1, 0)
        while True:
            try:
                await self._resynchronise(key)
                while True:
                    await self._read_once(key)
            except RedisError as error:
                log.warning("delivery_interrupted", error=str(error))
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _resynchronise(self, key: str) -> None:
        # A restarted Redis may have rolled back, and hand out ids again that we have passed already.
        newest: Reply = await self._redis.xrevrange(key, count=1)
        self._last = _parse_id(newest[0][0]) if newest else (1, 0)
        self.distrust_all()

    async def _read_once(self, key: str) -> None:
        last = f"{self._last[0]}-{self._last[1]}"
        rows: Reply = await self._redis.xread({key: last}, block=BLOCK_MS, count=256)
        for row_id, fields in _entries_of(rows):
            parsed = _parse_id(row_id)
            if parsed[1] != self._last[1] + 1:
                log.warning("delivery_trimmed", expected=self._last[1] + 1, got=parsed[1])
                self.distrust_all()
            self._last = parsed
            if fields[b"d"]:
                self._dispatch(fields[b"d"])

    def _dispatch(self, payload: bytes) -> None:
        entries = codec.decode_log_entries(payload)
        self.entries_delivered += len(entries)
        for entry in entries:
            for subscription in self._subscriptions.get(entry.stream_id, ()):
                subscription.push(entry)


def _entries_of(rows: Reply) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of the one key that was read, whichever shape this RESP version gives."""
    if not rows:
        return []
    entries = next(iter(rows.values()))[0] if isinstance(rows, dict) else rows[0][1]
    return list(entries)


def _parse_id(raw: bytes) -> tuple[int, int]:
    major, minor = raw.split(b"-")
    return int(major), int(minor)
