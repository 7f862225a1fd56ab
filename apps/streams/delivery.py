"""Delivery: what workers hand to this gateway, sorted to the subscriptions that wait for it.

One blocking read on a link of its own serves all streams: what comes is sorted in the very callback that brings it, and
the next read is sent from there. A subscription turns what arrives into a gap-free sequence, and re-reads the log where
delivery alone cannot tell (a trimmed delivery stream, a reconnect, its own full queue, a resume).
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from apps.streams.config_view import Caller
from apps.streams.limits import StreamLimit
from apps.streams.subscription import Subscription
from headrace_wire import codec, redis_keys
from headrace_wire.errors import HeadraceError, StreamCancelledError
from headrace_wire.functions import Reply
from headrace_wire.messages import AnyLogEntry
from headrace_wire.redis_link import RedisLink
from headrace_wire.token_log import TokenLog

log = structlog.get_logger(__name__)

FIRST_ID = b"1-0"
BLOCK_MS = 5000
READ_COUNT = 256
"""Deliveries, which are engine steps, that one read takes at most."""
ENTRIES_AT_ONCE = 32
"""Handed out in one turn of the event loop: a request that comes while a thousand readers get a token has its turns
among theirs, not behind them all."""
RECONNECT_SECONDS = 0.2


class Delivery:
    """Reads this gateway's delivery stream and hands each entry to its subscriptions."""

    def __init__(
        self, redis_url: str, token_log: TokenLog, limit: StreamLimit, *, on_connect: Callable[[], None]
    ) -> None:
        """`on_connect` is called with each connection: what was said to Redis a moment before may be forgotten."""
        self._url = redis_url
        self._log = token_log
        self._limit = limit
        self._on_connect = on_connect
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._by_own_id: dict[str, list[Subscription]] = {}
        self._last = FIRST_ID
        self.entries_delivered = 0

    def __len__(self) -> int:
        return sum(map(len, self._subscriptions.values()))

    def is_read(self, stream_id: str) -> bool:
        """Say whether a subscription to the stream is open here."""
        return stream_id in self._subscriptions

    def stream_ids(self) -> list[str]:
        """Return the streams that somebody reads here."""
        return list(self._subscriptions)

    def crowds(self) -> Iterator[tuple[str, int]]:
        """Yield streams that more than one reads here, and how many do."""
        for stream_id, readers in self._subscriptions.items():
            if len(readers) > 1:
                yield stream_id, len(readers)

    def subscriptions(self) -> list[Subscription]:
        """Return everybody who reads here."""
        return [subscription for readers in self._subscriptions.values() for subscription in readers]

    def subscribe(
        self,
        stream_id: str,
        *,
        after: int = 0,
        read_log: bool = False,
        caller: Caller | None = None,
        had_under: int = 0,
        own_id: str = "",
    ) -> Subscription:
        """Return a subscription that continues after position `after`.

        Raises ServerOverloadedError when this gateway has as many readers as it may.

        `read_log` says that the stream may have entries already; the gateway must have been attached to it before.
        `had_under` and `own_id` are as in `Subscription`.
        """
        self._limit.enter()
        subscription = Subscription(
            self._log,
            stream_id,
            after=after,
            read_log=read_log,
            on_close=self._remove,
            caller=caller,
            had_under=had_under,
            own_id=own_id,
        )
        if own_id:
            self._by_own_id.setdefault(own_id, []).append(subscription)
        self._subscriptions.setdefault(stream_id, []).append(subscription)
        return subscription

    def replace(self, old: Subscription, new: Subscription) -> None:
        """Have the reader of one subscription go on with what another one was made for, and with its place."""
        self._remove(old)
        for readers in (self._subscriptions[new.stream_id], *filter(None, [self._by_own_id.get(new.own_id)])):
            readers[readers.index(new)] = old
        old.become(new)

    def _remove(self, subscription: Subscription) -> None:
        self._limit.leave(had_turn=subscription.had_turn)
        readers = self._subscriptions[subscription.stream_id]
        readers.remove(subscription)
        if not readers:
            del self._subscriptions[subscription.stream_id]
        if subscription.own_id:
            own = self._by_own_id[subscription.own_id]
            own.remove(subscription)
            if not own:
                del self._by_own_id[subscription.own_id]

    def _leavers(self, entry: AnyLogEntry) -> Sequence[Subscription]:
        """End the readers of a caller who has cancelled its part in a stream that others have too; nobody gets this."""
        for subscription in self._by_own_id.get(entry.stream_id, ()):
            subscription.has_left = True
            subscription.interrupt(StreamCancelledError("The stream was cancelled."))
        return ()

    def interrupt_all(self, error: HeadraceError) -> None:
        """End every reader with `error`: this process is about to end."""
        for subscription in self.subscriptions():
            subscription.interrupt(error)

    def distrust_all(self) -> None:
        """Something may have been lost: every subscription goes on from its log."""
        for subscription in self.subscriptions():
            subscription.distrust()

    async def run(self, gateway: str) -> None:
        """Read `gateway`'s delivery stream until cancelled; enlisting has created it, with one entry."""
        while True:
            try:
                await self._follow(gateway)
            except RedisError as error:
                log.warning("delivery_interrupted", error=str(error))
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self, gateway: str) -> None:
        """Read until the link fails.

        Raises:
            redis.exceptions.RedisError: always, in the end.
        """
        key = redis_keys.delivery_key(gateway)
        failed: asyncio.Future[RedisError] = asyncio.get_running_loop().create_future()

        def fail(error: RedisError) -> None:
            if not failed.done():
                failed.set_result(error)

        link = await RedisLink.open(self._url, lost=lambda: fail(RedisConnectionError("the connection was lost")))
        try:
            await self._resynchronise(link, key, gateway)
            self._read_on(link, key, fail)
            raise await failed
        finally:
            link.close()

    async def _resynchronise(self, link: RedisLink, key: str, gateway: str) -> None:
        # A restarted Redis may have rolled back: it hands out ids again that we have passed already, and has forgotten
        # that we read a stream, or granted it credit, a moment ago.
        self._on_connect()
        await self._log.attach_all(self.stream_ids(), gateway)
        (newest,) = await link.ask([("XREVRANGE", key, "+", "-", "COUNT", 1)])
        self._last = newest[0][0] if newest else FIRST_ID
        self.distrust_all()

    def _read_on(self, link: RedisLink, key: str, fail: Callable[[RedisError], None]) -> None:
        def read() -> None:
            link.send([("XREAD", "BLOCK", BLOCK_MS, "COUNT", READ_COUNT, "STREAMS", key, self._last)], answered)

        def answered(replies: list[Reply] | RedisError) -> None:
            if isinstance(replies, RedisError):
                fail(replies)
            elif isinstance(replies[0], Exception):
                fail(ResponseError(str(replies[0])))
            else:
                # Of several steps, which come when we lag behind, each reader gets its tokens together.
                is_one_step = bool(replies[0]) and len(replies[0][0][1]) == 1
                hand_out(self._take(replies[0]), 0, Subscription.push_live if is_one_step else Subscription.push)

        def hand_out(entries: list[AnyLogEntry], begin: int, push: Callable[[Subscription, AnyLogEntry], None]) -> None:
            for entry in entries[begin : begin + ENTRIES_AT_ONCE]:
                for subscription in self._subscriptions.get(entry.stream_id) or self._leavers(entry):
                    push(subscription, entry)
            if begin + ENTRIES_AT_ONCE >= len(entries):
                read()
            elif link.is_open:  # else all go on from their logs
                loop.call_soon(hand_out, entries, begin + ENTRIES_AT_ONCE, push)

        loop = asyncio.get_running_loop()
        read()

    def _take(self, reply: Reply) -> list[AnyLogEntry]:
        """Return one read's entries; there are none after `BLOCK_MS` without any."""
        taken: list[AnyLogEntry] = []
        for row_id, fields in reply[0][1] if reply else ():
            if _number(row_id) != _number(self._last) + 1:
                log.warning("delivery_trimmed", after=self._last.decode(), got=row_id.decode())
                self.distrust_all()
            self._last = row_id
            if fields[1]:
                taken += codec.decode_log_entries(fields[1])
        self.entries_delivered += len(taken)
        return taken


def _number(row_id: bytes) -> int:
    """Return the running number of a delivery: ids are `1-<number>`."""
    return int(row_id.partition(b"-")[2])
