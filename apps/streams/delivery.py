"""Delivery: what workers hand to this gateway, sorted to the subscriptions that wait for it.

One blocking read serves all streams; a subscription turns what arrives into a gap-free sequence, and re-reads the log
where delivery alone cannot tell (a trimmed delivery stream, a reconnect, its own full queue, a resume).
"""

import asyncio

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from apps.streams.limits import StreamLimit
from apps.streams.subscription import Subscription
from headrace_wire import codec, redis_keys
from headrace_wire.errors import HeadraceError
from headrace_wire.functions import Reply
from headrace_wire.token_log import TokenLog

log = structlog.get_logger(__name__)

BLOCK_MS = 5000
RECONNECT_SECONDS = 0.2


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
        subscription = Subscription(self._log, stream_id, after=after, read_log=read_log, on_close=self._remove)
        self._subscriptions.setdefault(stream_id, []).append(subscription)
        return subscription

    def _remove(self, subscription: Subscription) -> None:
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
