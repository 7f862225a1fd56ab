"""One stream on one WebSocket: a task that the consumer owns, cancels and awaits (STYLE 11)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import structlog

from apps.api.answer import Answer
from apps.api.cache_controls import cache_controls
from apps.api.live_text import live_text, next_entries
from apps.api.protocol import FrameWriter, Generate, Resume, error_frame, final_frames, waiting_frame
from apps.api.requests import conversation_of
from apps.api.stall_timer import StallTimer
from apps.streams import metrics
from apps.streams.config_view import Caller
from apps.streams.follower import Follower
from apps.streams.gateway import Gateway
from apps.streams.latency_reading import LatencyReading, part_of, reading_of_resumed, refusals_counted, series_of
from apps.streams.limits import QueueNews
from apps.streams.services import CacheOutcome, CacheWord, StreamOptions, stream_attach, stream_leave, stream_start
from apps.streams.services.routing import Route, stream_route, try_kept, try_noted
from apps.streams.subscription import Subscription
from apps.streams.traces import Trace, trace_kept
from apps.streams.transport import client_timed_out, send_at_once, transport_of
from headrace_wire.errors import HeadraceError, InvalidRequestError, ServerError
from headrace_wire.messages import AnyLogEntry, Delta, SamplingParams, Started

log = structlog.get_logger(__name__)

SendText = Callable[[str], Awaitable[None]]


class StreamPump:
    """Starts or resumes a stream and writes its frames at the client's pace."""

    def __init__(
        self,
        gateway: Gateway,
        caller: Caller,
        frame: Generate | Resume,
        *,
        send: SendText,
        scope: Mapping[str, Any],
        on_stall: Callable[[], None],
        acknowledges: bool,
        arrived_at: float | None = None,
    ) -> None:
        """`acknowledges`: the client sends `ack` frames; else what the transport has taken counts as delivered.

        `arrived_at`: `time.perf_counter()` when the frame had come in; now where it is not known.
        """
        self.stream_id: str | None = frame.stream_id if isinstance(frame, Resume) else None
        self.ended = False
        self.sent_seq = 0
        """Position of the last token handed to the transport; acknowledgements are clamped to it."""
        self.acknowledged_seq = 0
        self._gateway = gateway
        self._caller = caller
        self._send = send
        self._scope = scope
        self._frame = frame
        self._acknowledges = acknowledges
        self._on_stall = on_stall
        self._stall = StallTimer(caller.tenant.stall_timeout_seconds, self._stalled)
        self._told_slow = False
        self._arrived_at = time.perf_counter() if arrived_at is None else arrived_at
        self._transport = transport_of(scope)
        self._subscription: Subscription | None = None
        self._cache: CacheOutcome | None = None
        """Unknown of a stream that is resumed."""
        self._answer: Answer | None = None

    def acknowledge(self, seq: int) -> bool:
        """Note that the client has handled everything up to `seq`; say whether that is news.

        More than was sent counts as what was sent.
        """
        position = min(seq, self.sent_seq)
        if position <= self.acknowledged_seq or self._subscription is None:
            return False
        self.acknowledged_seq = position
        self._told_slow = False
        self._stall.progress(still_owed=position < self.sent_seq)
        self._gateway.credit.acknowledge(self._subscription.stream_id, position)
        return True

    async def run(self) -> None:
        """Serve the stream to its end; errors become frames, a lost connection ends it quietly."""
        try:
            await self._serve()
        except HeadraceError as error:
            self.ended = self.ended or self._subscription is None
            await self._send_quietly(error_frame(error, stream_id=self.stream_id, ref=self._frame.ref))
        except ConnectionError:
            log.debug("client_gone", stream_id=self.stream_id)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("stream_pump_failed", stream_id=self.stream_id)
            failure = ServerError("The server failed to serve the stream.")
            await self._send_quietly(error_frame(failure, stream_id=self.stream_id, ref=self._frame.ref))
        finally:
            self._stall.stop()
            if self._subscription is not None:
                stream_leave(gateway=self._gateway, tenant=self._caller.tenant, subscription=self._subscription)

    async def _serve(self) -> None:
        if not isinstance(self._frame, Generate):
            follower, deployment, reading, trace = await self._resume(self._frame)
            with trace_kept(trace):
                await self._follow(follower, deployment, reading, trace)
            return
        sampling = self._frame.sampling()  # first: a request that cannot be understood tries no deployment
        route = stream_route(gateway=self._gateway, caller=self._caller, model=self._frame.model)
        with self._gateway.traces.request(
            dict(self._scope.get("headers", ())),
            model=route.deployment.name,
            tenant_id=self._caller.tenant.id,
            sampling=sampling,
            arrived_at=self._arrived_at,
        ) as trace:
            await self._follow(*await self._start(self._frame, sampling, route, trace), trace)

    async def _follow(self, follower: Follower, deployment: str, reading: LatencyReading, trace: Trace) -> None:
        assert self.stream_id is not None  # noqa: S101 - set by both branches above
        writer = FrameWriter(self.stream_id, self._frame.ref)
        writer.deployment = deployment
        was_drafted = self._gateway.drafts.was_hit(self.stream_id)
        answer = self._answer = Answer(deployment, "ws", self._arrived_at, reading, was_drafted=was_drafted)
        live = live_text(
            self._scope,
            answer,
            frame=partial(self._live_frame, writer, answer),
            written=self._written_live,
            taken=self._taken_live,
        )
        try:
            while not self.ended:
                entries = await next_entries(follower, answer, live)
                news = follower.take_news()
                if news is not None:
                    await self._send(writer.place(news))
                await self._write(writer, answer, entries)
        finally:
            answer.close(client_timed_out=client_timed_out(self._scope))
            trace.answered(answer)

    def _live_frame(self, writer: FrameWriter, answer: Answer, entry: Delta) -> bytes | None:
        if self._is_slow(entry.seq):
            return None
        return writer.delta(answer.after_of(entry), entry.seq, entry.text).encode()

    def _written_live(self, seq: int) -> None:
        self.sent_seq = seq
        if self._acknowledges:
            self._stall.owe()

    def _taken_live(self, seq: int) -> None:
        if not self._acknowledges:
            self.acknowledge(seq)

    def _stalled(self) -> None:
        if self._answer is not None:
            self._answer.timed_out()
        self._on_stall()

    async def _start(
        self, frame: Generate, sampling: SamplingParams, route: Route, trace: Trace
    ) -> tuple[Follower, str, LatencyReading]:
        key = series_of(self._caller, route.deployment.name)
        with refusals_counted(self._gateway.latencies, key), try_kept(self._gateway, route):
            started = await stream_start(
                gateway=self._gateway,
                caller=self._caller,
                deployment=route.deployment,
                conversation=conversation_of(frame.messages),
                sampling=sampling,
                options=StreamOptions(
                    window=frame.window,
                    priority=frame.priority,
                    prompt_cache=frame.prompt_cache,
                    cache=cache_controls(frame.cache, None, frame.user),
                    traceparent=trace.traceparent,
                    stands_in_for=route.stands_in_for,
                    only_kept=route.only_kept,
                ),
                on_wait=self._tell_place,
            )
        try_noted(self._gateway, route, started)
        reading = LatencyReading(self._gateway.latencies, key, part_of(started), arrived_at=self._arrived_at)
        self.stream_id, self._subscription = started.stream_id, started.subscription
        self._cache = started.cache
        trace.admitted(started.stream_id)
        await self._send(FrameWriter(started.stream_id, frame.ref).place(started.place))
        follower = Follower(
            self._gateway,
            started.subscription,
            tenant_id=self._caller.tenant.id,
            queue_deadline_seconds=None if started.is_shared else started.queue_deadline_seconds,
        )
        return follower, started.deployment.name, reading

    async def _tell_place(self, news: QueueNews) -> None:
        await self._send(waiting_frame(news, ref=self._frame.ref))

    async def _resume(self, frame: Resume) -> tuple[Follower, str, LatencyReading, Trace]:
        if frame.after < 0:
            raise InvalidRequestError("`after` is the last `seq` that you have, or 0.", param="after")
        self._subscription, deployment = await stream_attach(
            gateway=self._gateway, caller=self._caller, stream_id=frame.stream_id, after=frame.after
        )
        self.sent_seq = self.acknowledged_seq = frame.after
        follower = Follower(self._gateway, self._subscription, tenant_id=self._caller.tenant.id)
        key = series_of(self._caller, deployment)
        reading, trace = reading_of_resumed(self._gateway.latencies, key, frame.stream_id, arrived_at=self._arrived_at)
        return follower, deployment, reading, trace

    async def _write(self, writer: FrameWriter, answer: Answer, entries: list[AnyLogEntry]) -> None:
        text, ended = answer.take(entries)
        is_own = self._subscription is not None and self._subscription.is_second
        writer.cache = CacheOutcome(CacheWord.MISS) if is_own else self._cache
        for entry in entries:
            if isinstance(entry, Started):
                await self._send(writer.started(entry))
        if text:
            # Before the send, during which the client may acknowledge already.
            self.sent_seq = self._subscription.position if self._subscription is not None else 0
            if self._acknowledges:
                self._stall.owe()
            frame = writer.delta(answer.told_after(), self.sent_seq, text)
            answer.writes()
            await send_at_once(self._transport, frame.encode(), partial(self._send, frame))
            answer.sent_text()
            if not self._acknowledges:
                self.acknowledge(self.sent_seq)
            await self._tell_slow(writer)
        if ended is not None:
            self.ended = True
            for frame in final_frames(writer, answer):
                answer.writes()
                await send_at_once(self._transport, frame.encode(), partial(self._send, frame))

    async def _tell_slow(self, writer: FrameWriter) -> None:
        """Say once, to a client that asked for it, that its stream is held until it acknowledges."""
        if self._is_slow(self.sent_seq):
            self._told_slow = True
            metrics.CREDIT_STALLS.inc()
            if self._answer is not None:
                self._answer.stalled()
            if self._frame.notices:
                await self._send(writer.slow_consumer(self.sent_seq, self.acknowledged_seq))

    def _is_slow(self, sent_seq: int) -> bool:
        """Say whether the client, once it has everything up to `sent_seq`, is to be told that its stream is held."""
        if self._told_slow or self._subscription is None:
            return False
        granted = self._gateway.credit.granted(self._subscription.stream_id)
        return 0 < granted <= sent_seq and self.acknowledged_seq < sent_seq

    async def _send_quietly(self, text: str) -> None:
        try:
            await self._send(text)
        except ConnectionError:
            log.debug("client_gone", stream_id=self.stream_id)
