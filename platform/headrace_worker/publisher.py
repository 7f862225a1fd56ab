"""From generations to the token log: one append per engine step, in order, exactly once.

The rules are DESIGN 3's: Append, Publish only what was accepted, Rollback, Settle.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from redis.exceptions import RedisError

from headrace_wire.functions import Functions, Reply
from headrace_wire.messages import Ended
from headrace_wire.redis_link import RedisLink
from headrace_wire.token_log import Append, AppendResult, TokenLog
from headrace_worker.finishing import BACK_OFF_SECONDS, End, Finishing
from headrace_worker.outbox import Outbox, acknowledge_all, take_all

log = logging.getLogger(__name__)

ROLLBACK_SECONDS = 3.0
"""How long a settled stream is remembered: longer than what a Redis with an every-second append-only file may lose."""


class Publisher:
    """Owns the outboxes of all streams between their claim and their settlement.

    One append is under way at a time, for all streams together; what comes meanwhile is merged into the next.
    """

    def __init__(
        self,
        url: str,
        functions: Functions,
        token_log: TokenLog,
        *,
        on_drop: Callable[[str, int], None],
        on_set_aside: Callable[[], None] = lambda: None,
    ) -> None:
        """Append over a link to `url`; everything that is rare goes over the client behind the other two.

        `on_drop` is called for a stream (id, epoch) that belongs to somebody else, or whose log is gone: generate it no
        more. `on_set_aside` is called for each stream whose settlement fails, and is left to a person.
        """
        self._url = url
        self._functions = functions
        self._token_log = token_log
        self._on_drop = on_drop
        self._outboxes: dict[str, Outbox] = {}
        self._settled: deque[tuple[float, Outbox]] = deque()
        self._dirty: dict[str, Outbox] = {}
        self._under_way: list[Outbox] | None = None
        """Outboxes of the append that is under way."""
        self._link: RedisLink | None = None
        self._link_broken = asyncio.Event()
        self._is_flush_due = False
        self._failures = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._appended = asyncio.Event()
        """Set, and made anew, by each append that was accepted while somebody waits for one."""
        self._is_waited_for = False
        self._endings = asyncio.TaskGroup()
        self._finishing = Finishing(
            functions, token_log, self._endings, finished=self._finished, set_aside=on_set_aside
        )

    # ---- for generations and the lease

    def open(self, outbox: Outbox) -> None:
        """Take responsibility for a stream: from now on it is listed as owned, until it is settled."""
        before = self._outboxes.get(outbox.stream_id)
        if before is not None and before is not outbox:
            self._forget(before)
        self._outboxes[outbox.stream_id] = outbox
        self._empty.clear()

    def put(self, outbox: Outbox, append: Append) -> None:
        """Queue an entry; it goes out with the next `flush`, at the latest with the next turn of the event loop."""
        if outbox.dropped:
            return
        if outbox.waiting:
            outbox.add(append)
        else:
            outbox.waiting.append(append)
        self._dirty[outbox.stream_id] = outbox
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def gather(self) -> None:
        """Have what is put now wait for `flush`, which the caller calls before the event loop's next turn."""
        self._is_flush_due = True

    def owned(self) -> list[tuple[str, int, int]]:
        """Return (stream id, epoch, tokens logged) of everything that is worked on."""
        return [(outbox.stream_id, outbox.epoch, outbox.logged) for outbox in self._outboxes.values()]

    def lose(self, streams: Iterable[tuple[str, int]]) -> None:
        """Forget streams (id, epoch) that belong to somebody else now; nothing more is written to them."""
        for stream_id, epoch in streams:
            outbox = self._find(stream_id, epoch)
            if outbox is not None and outbox.ended is None:
                self._drop(outbox)

    def release(self, stream_id: str, epoch: int) -> None:
        """Forget a stream that was given back; as `lose`, of the owner's own accord."""
        outbox = self._find(stream_id, epoch)
        if outbox is not None:
            self._forget(outbox)

    async def wait_flushed(self, stream_id: str, epoch: int) -> None:
        """Wait until all that was put of a stream is in its log, or it is not ours any more."""
        while True:
            outbox = self._find(stream_id, epoch)
            if outbox is None or not (outbox.has_work or outbox.sent):
                return
            self._is_waited_for = True
            await self._appended.wait()

    def adopt(self, outbox: Outbox, ended: Ended) -> None:
        """Settle and publish an end that an earlier owner wrote and did not bring to its end."""
        outbox.kept = [Append(ended)]
        self._finish_all([outbox])

    async def wait_empty(self) -> None:
        """Wait until every stream is settled and its end published."""
        await self._empty.wait()

    async def run(self) -> None:
        """Keep a link open until cancelled."""
        try:
            async with self._endings:
                while True:
                    await self._recover()
                    await self._link_broken.wait()
        finally:
            if self._link is not None:
                self._link.close()

    # ---- the way of every token

    def flush(self) -> None:
        """Send all that waits as one append, unless one is under way."""
        self._is_flush_due = False
        link, dirty = self._link, self._dirty
        if link is None or self._under_way is not None or not dirty:
            return
        self._dirty = {}
        self._under_way = under_way = list(dirty.values())
        appends = take_all(under_way)
        link.send(
            [self._functions.command(call) for _, call in self._token_log.append_calls(appends)],
            self._answered,
        )

    def _answered(self, replies: list[Reply] | RedisError) -> None:
        under_way, self._under_way = self._under_way or [], None
        problem = _problem(replies)
        if problem:
            self._break(problem)
            return
        self._failures = 0
        self._tell_appended()
        self._finish_all(acknowledge_all(under_way))
        if self._dirty:
            self.flush()

    # ---- after an error

    def _break(self, reason: str) -> None:
        """Stop appending until every log was compared with what we think is in it."""
        log.warning("appends interrupted: %s", reason)
        if self._link is not None:
            self._link.close()
        self._under_way = None
        self._link = None
        self._link_broken.set()

    async def _recover(self) -> None:
        """Open a link and bring every stream in line with its log, as often as it takes."""
        for _, outbox in self._settled:
            self.open(outbox)
        self._settled.clear()
        while True:
            self._link_broken.clear()
            await asyncio.sleep(BACK_OFF_SECONDS[min(self._failures, len(BACK_OFF_SECONDS) - 1)])
            self._failures += 1
            link: RedisLink | None = None
            try:
                await self._functions.load()
                link = await RedisLink.open(self._url, lost=lambda: self._break("the connection was lost"))
                self._finish_all([outbox for outbox in list(self._outboxes.values()) if await self._compare(outbox)])
            except RedisError as error:
                log.log(logging.WARNING if self._failures < 3 else logging.DEBUG, "redis is away: %s", error)
                if link is not None:
                    link.close()
            else:
                self._link = link
                self.flush()
                return

    async def _compare(self, outbox: Outbox) -> bool:
        """Bring an outbox in line with its log; True when its terminal entry is in it."""
        tail = await self._token_log.tail(outbox.stream_id)
        if outbox.dropped:
            return False
        if tail is None:
            self.give_up(outbox)
        elif tail.epoch > outbox.epoch:
            log.warning("fenced stream_id=%s epoch=%d tail_epoch=%d", outbox.stream_id, outbox.epoch, tail.epoch)
            self._drop(outbox)
        elif not outbox.compare(tail):
            self.give_up(outbox)
        elif outbox.has_work:
            self._dirty[outbox.stream_id] = outbox
        return outbox.ended is not None

    def give_up(self, outbox: Outbox) -> None:
        """The log has expired, was deleted, or lacks too much: settle, so that nobody generates it again.

        Nobody can read what was generated, so nobody pays for it.
        """
        log.warning("log lost stream_id=%s", outbox.stream_id)
        self._drop(outbox)
        self._finishing.give_up(outbox)

    def _find(self, stream_id: str, epoch: int) -> Outbox | None:
        """Return the outbox of one claim; the same stream may have been claimed here again."""
        outbox = self._outboxes.get(stream_id)
        return outbox if outbox is not None and outbox.epoch == epoch else None

    def _drop(self, outbox: Outbox) -> None:
        self._forget(outbox)
        self._on_drop(outbox.stream_id, outbox.epoch)

    def _forget(self, outbox: Outbox) -> None:
        outbox.drop()
        if self._dirty.get(outbox.stream_id) is outbox:
            del self._dirty[outbox.stream_id]
        self._close(outbox)
        self._tell_appended()

    def _tell_appended(self) -> None:
        if self._is_waited_for:
            self._appended.set()
            self._appended = asyncio.Event()
            self._is_waited_for = False

    def _close(self, outbox: Outbox) -> None:
        if self._outboxes.get(outbox.stream_id) is outbox:
            del self._outboxes[outbox.stream_id]
        if not self._outboxes:
            self._empty.set()

    # ---- the end of a stream

    def _finish_all(self, outboxes: Sequence[Outbox]) -> None:
        """See to streams whose terminal entry is in the log; `_recover` does so again where the link breaks."""
        ended = [(outbox, entry) for outbox in outboxes if (entry := outbox.ended) is not None]
        if ended:
            self._finishing.begin(ended, self._link)

    def _finished(self, ended: Sequence[End]) -> None:
        now = time.monotonic()
        while self._settled and self._settled[0][0] < now - ROLLBACK_SECONDS:
            self._settled.popleft()
        for outbox, _ in ended:
            if outbox.ended is not None and self._outboxes.get(outbox.stream_id) is outbox:
                self._settled.append((now, outbox))
                self._close(outbox)


def _problem(replies: list[Reply] | RedisError) -> str:
    """Return why not every entry was accepted; empty when all were."""
    if isinstance(replies, RedisError):
        return str(replies)
    for reply in replies:
        if isinstance(reply, Exception):
            return str(reply)
        if reply.count(AppendResult.ACCEPTED) != len(reply):
            return "an entry was refused"
    return ""
