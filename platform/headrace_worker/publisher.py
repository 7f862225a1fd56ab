"""From generations to the token log: one append per engine step, in order, exactly once.

The rules are DESIGN 3's: Append, Publish only what was accepted, Rollback, Settle.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from redis.exceptions import RedisError

from headrace_wire.functions import Functions
from headrace_wire.messages import Ended, StreamState
from headrace_wire.request_queue import RequestQueue
from headrace_wire.token_log import Append, AppendResult, TokenLog
from headrace_worker.connections import GuardedConnection
from headrace_worker.outbox import Outbox

log = logging.getLogger(__name__)

BACK_OFF_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)

ROLLBACK_SECONDS = 3.0
"""How long a settled stream is remembered: longer than what a Redis with an every-second append-only file may lose."""


class Publisher:
    """Owns the outboxes of all streams between their claim and their settlement."""

    def __init__(
        self,
        appends: GuardedConnection,
        token_log: TokenLog,
        queue: RequestQueue,
        *,
        on_drop: Callable[[str], None],
    ) -> None:
        """Append over `appends`, publish and settle over the other two.

        `on_drop` is called for a stream that belongs to somebody else, or whose log is gone: stop generating it.
        """
        self._connection = appends
        self._appends = TokenLog(appends.redis, Functions(appends.redis))
        self._token_log = token_log
        self._queue = queue
        self._on_drop = on_drop
        self._outboxes: dict[str, Outbox] = {}
        self._settled: deque[tuple[float, Outbox]] = deque()
        self._dirty: dict[str, Outbox] = {}
        self._work = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._endings = asyncio.TaskGroup()
        self._failures = 0

    # ---- for generations and the lease

    def open(self, outbox: Outbox) -> None:
        """Take responsibility for a stream: from now on it is listed as owned, until it is settled."""
        self._outboxes[outbox.stream_id] = outbox
        self._empty.clear()

    def put(self, outbox: Outbox, append: Append) -> None:
        """Queue an entry. Everything that is put before the next turn of the event loop goes out in one append."""
        if outbox.dropped:
            return
        outbox.add(append)
        self._dirty[outbox.stream_id] = outbox
        self._work.set()

    def adopt(self, outbox: Outbox, ended: Ended) -> None:
        """Settle and publish an end that an earlier owner wrote and did not bring to its end."""
        outbox.kept = [Append(ended)]
        self._finish_all([outbox])

    def owned(self) -> list[tuple[str, int]]:
        """Return (stream id, epoch) of everything that is worked on."""
        return [(outbox.stream_id, outbox.epoch) for outbox in self._outboxes.values()]

    def lose(self, stream_ids: Iterable[str]) -> None:
        """Forget streams that belong to somebody else now; nothing more is written to them."""
        for stream_id in stream_ids:
            outbox = self._outboxes.get(stream_id)
            if outbox is not None and outbox.ended is None:
                self._drop(outbox)

    async def wait_empty(self) -> None:
        """Wait until every stream is settled and its end published."""
        await self._empty.wait()

    # ---- the loop

    async def run(self) -> None:
        """Append, settle and publish until cancelled."""
        async with self._endings:
            self._finish_all(await self._reconcile())
            while True:
                await self._work.wait()
                self._work.clear()
                while self._dirty:
                    batch, self._dirty = list(self._dirty.values()), {}
                    await self._append(batch)

    async def _append(self, batch: Sequence[Outbox]) -> None:
        appends = [append for outbox in batch for append in outbox.take()]
        counts = [len(outbox.sent) for outbox in batch]
        try:
            results = await self._appends.append(appends)
        except RedisError as error:
            await self._failed(error)
            return
        self._failures = 0
        ended: list[Outbox] = []
        position = 0
        for outbox, count in zip(batch, counts, strict=True):
            verdicts = results[position : position + count]
            position += count
            if outbox.dropped:
                continue
            if all(verdict is AppendResult.ACCEPTED for verdict in verdicts):
                outbox.acknowledge()
                if outbox.ended is not None:
                    ended.append(outbox)
            else:
                await self._refused(outbox)
        if ended:
            self._finish_all(ended)

    async def _refused(self, outbox: Outbox) -> None:
        try:
            if await self._compare(outbox):
                self._finish_all([outbox])
        except RedisError as error:
            await self._failed(error)

    # ---- after an error

    async def _failed(self, error: RedisError) -> None:
        log.warning("append failed: %s", error)
        await self._pause()
        self._finish_all(await self._reconcile())

    async def _pause(self) -> None:
        await asyncio.sleep(BACK_OFF_SECONDS[min(self._failures, len(BACK_OFF_SECONDS) - 1)])
        self._failures += 1

    async def _reconcile(self) -> list[Outbox]:
        """Compare every stream with its log, as often as it takes; return those whose terminal entry is in it."""
        for _, outbox in self._settled:
            self.open(outbox)
        self._settled.clear()
        while True:
            try:
                with self._connection.connecting():
                    await self._connection.redis.ping()
                    return [outbox for outbox in list(self._outboxes.values()) if await self._compare(outbox)]
            except RedisError as error:
                log.log(logging.DEBUG if self._failures > 1 else logging.WARNING, "redis is away: %s", error)
                await self._pause()

    async def _compare(self, outbox: Outbox) -> bool:
        """Bring an outbox in line with its log; True when its terminal entry is in it."""
        tail = await self._appends.tail(outbox.stream_id)
        if outbox.dropped:
            return False
        if tail is None:
            self._give_up(outbox)
        elif tail.epoch > outbox.epoch:
            log.warning("fenced stream_id=%s epoch=%d tail_epoch=%d", outbox.stream_id, outbox.epoch, tail.epoch)
            self._drop(outbox)
        else:
            outbox.compare(tail)
            if outbox.has_work:
                self._dirty[outbox.stream_id] = outbox
                self._work.set()
        return outbox.ended is not None

    def _give_up(self, outbox: Outbox) -> None:
        """The log has expired or was deleted: settle, so that nobody generates it again."""
        log.warning("log gone stream_id=%s", outbox.stream_id)
        self._drop(outbox)
        self._endings.create_task(self._until_answered(lambda: self._settle(outbox, StreamState.FAILED)))

    def _drop(self, outbox: Outbox) -> None:
        outbox.drop()
        self._dirty.pop(outbox.stream_id, None)
        self._close(outbox)
        self._on_drop(outbox.stream_id)

    def _close(self, outbox: Outbox) -> None:
        if self._outboxes.get(outbox.stream_id) is outbox:
            del self._outboxes[outbox.stream_id]
        if not self._outboxes:
            self._empty.set()

    # ---- the end of a stream

    def _finish_all(self, outboxes: Sequence[Outbox]) -> None:
        if outboxes:
            self._endings.create_task(self._finish(outboxes))

    async def _finish(self, outboxes: Sequence[Outbox]) -> None:
        """Settle, then publish; both are repeated until Redis has answered, and both bear repetition."""
        entries = [ended for outbox in outboxes if (ended := outbox.ended) is not None]
        by_id = {outbox.stream_id: outbox for outbox in outboxes}

        async def settle_and_publish() -> None:
            for entry in entries:
                await self._settle(by_id[entry.stream_id], entry.state)
            await self._token_log.publish(entries)

        await self._until_answered(settle_and_publish)
        now = time.monotonic()
        while self._settled and self._settled[0][0] < now - ROLLBACK_SECONDS:
            self._settled.popleft()
        for outbox in outboxes:
            if outbox.ended is not None and self._outboxes.get(outbox.stream_id) is outbox:
                self._settled.append((now, outbox))
                self._close(outbox)

    async def _settle(self, outbox: Outbox, state: StreamState) -> None:
        await self._queue.settle(
            outbox.stream_id,
            epoch=outbox.epoch,
            incarnation=outbox.incarnation,
            state=state,
            log_ttl_seconds=outbox.log_ttl_seconds,
        )

    async def _until_answered(self, call: Callable[[], Awaitable[None]]) -> None:
        for attempt in range(1_000_000):
            try:
                return await call()
            except RedisError as error:
                log.warning("settlement waits for redis: %s", error)
                await asyncio.sleep(BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS) - 1)])
        return None
