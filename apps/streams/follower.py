"""A reader's loop around a subscription: heartbeats, the queue deadline, and patience with Redis."""

import asyncio
import time
from contextlib import suppress

import structlog
from redis.exceptions import RedisError

from apps.streams.gateway import Gateway
from apps.streams.limits import QueueNews
from apps.streams.services import stream_expire_in_queue
from apps.streams.subscription import LiveSink, Subscription
from headrace_wire.errors import HeadraceError, LogRolledBackError, StreamGoneError
from headrace_wire.messages import AnyLogEntry

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 15.0
RETRY_SECONDS = 0.25


class Follower:
    """Gives a reader the entries of one stream; an empty answer says that a heartbeat is due."""

    def __init__(
        self,
        gateway: Gateway,
        subscription: Subscription,
        *,
        tenant_id: str,
        queue_deadline_seconds: float | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        """`queue_deadline_seconds` counts from now; None for a stream that somebody else started."""
        self._gateway = gateway
        self._subscription = subscription
        self._tenant_id = tenant_id
        self._heartbeat_seconds = heartbeat_seconds
        self._news: QueueNews | None = None
        self._deadline = None if queue_deadline_seconds is None else time.monotonic() + queue_deadline_seconds

    @property
    def stream_id(self) -> str:
        """The stream that is followed."""
        return self._subscription.stream_id

    @property
    def position(self) -> int:
        """Position of the last token that the reader was given."""
        return self._subscription.position

    def _has_news(self) -> bool:
        waiting = self._subscription.waiting
        self._news = waiting.take() if waiting is not None else None
        return self._news is not None

    def take_news(self) -> QueueNews | None:
        """Return where the stream stands in the queue, if the last call of `next` returned for that."""
        news, self._news = self._news, None
        return news

    async def next(self, sink: LiveSink | None = None) -> list[AnyLogEntry]:
        """Return new entries in order, or [] after `heartbeat_seconds` without any, or when there is news to take.

        `sink` is given tokens that come while this waits, once an owner has begun to write; [] when it is full.

        Raises:
            StreamGoneError: the log has expired.
            LogRolledBackError: the stream store has lost it, or what the reader has of it.
        """
        if self._has_news():
            return []
        if self._subscription.queue_deadline_seconds is not None:
            self._deadline = time.monotonic() + self._subscription.queue_deadline_seconds
            self._subscription.queue_deadline_seconds = None
        try:
            is_waiting = self._deadline is not None or self._subscription.waiting is not None
            entries = await self._subscription.next(self._patience(), None if is_waiting else sink)
        except StreamGoneError as error:
            raise await self._told_apart(error) from error
        except RedisError as error:
            log.warning("log_unreadable", stream_id=self._subscription.stream_id, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            return []
        if self._subscription.is_sink_full:
            self._subscription.is_sink_full = False
            return entries
        if not entries:
            return [] if self._has_news() else await self._on_silence()
        self._deadline = None  # the first entry after admission is written by an owner
        self._end_wait()
        return entries

    def _end_wait(self) -> None:
        waiting = self._subscription.waiting
        if waiting is not None:
            self._subscription.waiting = None
            self._gateway.waiting_room.leave(waiting)
            waiting.is_taken()

    async def _told_apart(self, gone: StreamGoneError) -> HeadraceError:
        """A record outlives the log of its stream by far: without it, both were lost."""
        with suppress(RedisError):
            record = await self._gateway.queue.record(self._subscription.stream_id)
            if record is None or not record.state.is_terminal:
                return LogRolledBackError(
                    "The stream store has restarted and lost this stream; send the request again."
                )
        return gone

    def _patience(self) -> float:
        if self._deadline is None:
            return self._heartbeat_seconds
        return min(self._heartbeat_seconds, max(0.0, self._deadline - time.monotonic()))

    async def _on_silence(self) -> list[AnyLogEntry]:
        self._subscription.distrust()  # whatever kept an entry from being delivered, nobody waits longer than this
        if self._deadline is not None and time.monotonic() >= self._deadline:
            try:
                await stream_expire_in_queue(
                    gateway=self._gateway, tenant_id=self._tenant_id, stream_id=self._subscription.stream_id
                )
                self._deadline = None  # its end is in the log now, or an owner has just taken it
            except RedisError as error:
                log.warning("queue_deadline_unenforced", stream_id=self._subscription.stream_id, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        return []
