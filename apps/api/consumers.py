"""The WebSocket consumer at `/v1/ws`. Handlers return at once; each stream is pumped by a task of its own."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import structlog
from channels.generic.websocket import AsyncWebsocketConsumer

from apps.accounts.tickets import InvalidTicketError, chat_ticket_read
from apps.api.draft_desk import DraftDesk
from apps.api.frame_rate import FrameRate
from apps.api.http import presented_key
from apps.api.origin import is_allowed_origin
from apps.api.protocol import (
    SUBPROTOCOL,
    TICKET_PREFIX,
    Ack,
    CancelFrame,
    DraftFrame,
    Frame,
    Generate,
    Resume,
    error_frame,
    parse_frame,
)
from apps.api.stream_pump import StreamPump
from apps.streams import metrics
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.runtime import current_gateway
from apps.streams.services import stream_cancel
from apps.streams.transport import RECEIVED_AT, limit_stall
from headrace_wire.api_key import ApiKeyScope
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.errors import (
    HeadraceError,
    InvalidApiKeyError,
    InvalidRequestError,
    PermissionDeniedError,
    RateLimitError,
)

log = structlog.get_logger(__name__)

MAX_STREAMS_PER_CONNECTION = 64
MAX_ERRANDS = MAX_STREAMS_PER_CONNECTION
"""What frames have set going and is not done; each may wait for the client to take its answer. Full: reading pauses."""
STALLED_CLOSE_CODE = 4408


class StreamConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels ships no types
    """Speaks `headrace.v1` (see `protocol`)."""

    gateway: Gateway
    caller: Caller

    async def connect(self) -> None:
        """Authenticate; a refusal is an error frame and a close code, since browsers cannot see a refused handshake."""
        self._pumps: dict[StreamPump, asyncio.Task[None]] = {}
        self._frames = FrameRate()
        self._errands: set[asyncio.Task[None]] = set()
        self._drafts = DraftDesk(self._tell)
        self._counted_as: Caller | None = None
        self._received_at: float | None = None
        self._session_group = ""
        """Of a browser's sign-in, which this socket ends with; empty for a key's."""
        offered = self.scope["subprotocols"]
        await self.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        try:
            self.gateway = await current_gateway()
            self.caller = self._authenticate(offered)
            if self._session_group:
                await self.channel_layer.group_add(self._session_group, self.channel_name)
            self.gateway.connections.enter(self.caller)
            self._counted_as = self.caller
            limit_stall(self.scope, self.caller.tenant.stall_timeout_seconds)
            if offered and SUBPROTOCOL not in offered:
                raise InvalidRequestError(f"Offer the subprotocol {SUBPROTOCOL}.")
        except HeadraceError as error:
            await self.send(error_frame(error))
            await self.close(code=error.ws_close_code)

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        """Keep when it came: it may have waited for its turn since."""
        self._received_at = message.get(RECEIVED_AT)
        await super().websocket_receive(message)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:  # noqa: ARG002
        """Act on one frame; a bad one gets an error and the connection stays."""
        try:
            frame = parse_frame(text_data)
            if isinstance(frame, Ack) and self._acknowledge(frame):
                return
            await self._slow_down()
            await self._dispatch(frame)
        except HeadraceError as error:
            await self._slow_down()
            await self._set_going(self._tell(error_frame(error)))

    async def _slow_down(self) -> None:
        delay = self._frames.take()
        if delay:
            metrics.FRAMES_DELAYED.inc()
            # Channels reads the next frame when this returns; the server's inbox is bounded and pauses reading.
            await asyncio.sleep(delay)

    async def disconnect(self, code: int) -> None:  # noqa: ARG002
        """Stop the pumps; their streams go on or end as the tenant's policy says."""
        if self._session_group:
            await self.channel_layer.group_discard(self._session_group, self.channel_name)
        if self._counted_as is not None:
            self.gateway.connections.leave(self._counted_as)
            self._counted_as = None
        await cancel_and_wait(*self._pumps.values())
        await self._drafts.close()
        await asyncio.gather(*self._errands, return_exceptions=True)

    async def session_ended(self, message: dict[str, Any]) -> None:  # noqa: ARG002
        """Close: whoever opened the page has signed out."""
        await self.close(code=InvalidApiKeyError.ws_close_code, reason="signed out")

    async def _dispatch(self, frame: Frame) -> None:
        if isinstance(frame, Generate | Resume):
            self._start_pump(frame)
        elif isinstance(frame, CancelFrame):
            await self._set_going(self._cancel(frame.stream_id))
        elif isinstance(frame, DraftFrame):
            self.caller = self.gateway.config.renewed(self.caller)
            self._drafts.put(self.gateway, self.caller, frame)

    async def _set_going(self, errand: Coroutine[Any, Any, None]) -> None:
        """Have something done beside the frames: one that waited for the client here would keep the next ones unheard.

        A client that leaves as many answers unread as it may is not heard either, until it has gone.
        """
        while len(self._errands) >= MAX_ERRANDS:
            await asyncio.wait(self._errands, return_when=asyncio.FIRST_COMPLETED)
        self._begin(errand)

    def _begin(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _tell(self, text: str) -> None:
        with suppress(ConnectionError):  # it has left, which `disconnect` is told
            await self.send(text)

    def _start_pump(self, frame: Generate | Resume) -> None:
        if len(self._pumps) >= MAX_STREAMS_PER_CONNECTION:
            raise RateLimitError(
                f"This connection has {MAX_STREAMS_PER_CONNECTION} streams; wait for one to end.",
                retry_after_seconds=1.0,
            )
        self.caller = self.gateway.config.renewed(self.caller)
        pump = StreamPump(
            self.gateway,
            self.caller,
            frame,
            send=self.send,
            scope=self.scope,
            on_stall=self._stalled,
            acknowledges=SUBPROTOCOL in self.scope["subprotocols"],
            arrived_at=self._received_at,
        )
        task = asyncio.create_task(pump.run())
        self._pumps[pump] = task
        if isinstance(frame, Generate):
            self._drafts.withdraw()
        task.add_done_callback(lambda _: self._pumps.pop(pump, None))

    async def _cancel(self, stream_id: str) -> None:
        try:
            await stream_cancel(
                gateway=self.gateway, tenant_id=self.caller.tenant.id, stream_id=stream_id, reason="client"
            )
        except HeadraceError as error:
            await self._tell(error_frame(error, stream_id=stream_id))

    def _acknowledge(self, frame: Ack) -> bool:
        """Pass an acknowledgement on; say whether there was anything new in it."""
        news = [pump.acknowledge(frame.seq) for pump in self._pumps if pump.stream_id == frame.stream_id]
        return any(news)

    def _stalled(self) -> None:
        """Close: the client has acknowledged nothing for its tenant's stall timeout."""
        self._begin(self._close_stalled())

    async def _close_stalled(self) -> None:
        metrics.CLIENTS_STALLED.inc()
        log.info("client_stalled", tenant=self.caller.tenant.slug, streams=len(self._pumps))
        await self.close(code=STALLED_CLOSE_CODE, reason="stalled: nothing was acknowledged in time; resume later")

    def _authenticate(self, offered: list[str]) -> Caller:
        ticket = next((text.removeprefix(TICKET_PREFIX) for text in offered if text.startswith(TICKET_PREFIX)), None)
        if ticket is not None:
            return self._caller_of_ticket(ticket)
        caller = self.gateway.authenticate(presented_key(self.scope["headers"]))
        self.gateway.config.require_scope(caller, ApiKeyScope.INFERENCE)
        return caller

    def _caller_of_ticket(self, text: str) -> Caller:
        headers = dict(self.scope["headers"])
        if not is_allowed_origin(headers.get(b"origin"), headers.get(b"host")):
            raise PermissionDeniedError("This page may not open a stream here.")
        try:
            ticket = chat_ticket_read(text)
        except InvalidTicketError as error:
            raise InvalidApiKeyError("The chat's ticket is not valid any more; reload the page.") from error
        tenant = self.gateway.config.tenants.get(ticket.tenant_id)
        if tenant is None or not tenant.active:
            raise PermissionDeniedError("This tenant is not active.")
        self._session_group = ticket.session
        return Caller(tenant, user_id=ticket.user_id)
