"""The WebSocket consumer at `/v1/ws`. Handlers return at once; each stream is pumped by a task of its own."""

import asyncio

import structlog
from channels.generic.websocket import AsyncWebsocketConsumer

from apps.accounts.tickets import InvalidTicketError, chat_ticket_read
from apps.api.http import presented_key
from apps.api.origin import is_allowed_origin
from apps.api.protocol import (
    SUBPROTOCOL,
    TICKET_PREFIX,
    Ack,
    CancelFrame,
    Frame,
    Generate,
    Resume,
    error_frame,
    parse_frame,
)
from apps.api.stream_pump import StreamPump
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.runtime import current_gateway
from apps.streams.services import stream_cancel
from headrace_wire.api_key import ApiKeyScope
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.errors import (
    HeadraceError,
    InvalidApiKeyError,
    InvalidRequestError,
    PermissionDeniedError,
    RateLimitError,
)
from headrace_wire.snapshot import DetachedPolicy

log = structlog.get_logger(__name__)

MAX_STREAMS_PER_CONNECTION = 64


class StreamConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels ships no types
    """Speaks `headrace.v1` (see `protocol`)."""

    gateway: Gateway
    caller: Caller

    async def connect(self) -> None:
        """Authenticate; a refusal is an error frame and a close code, since browsers cannot see a refused handshake."""
        self._pumps: dict[StreamPump, asyncio.Task[None]] = {}
        self._cancels: set[asyncio.Task[None]] = set()
        offered = self.scope["subprotocols"]
        await self.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        try:
            self.gateway = await current_gateway()
            self.caller = self._authenticate(offered)
            if offered and SUBPROTOCOL not in offered:
                raise InvalidRequestError(f"Offer the subprotocol {SUBPROTOCOL}.")
        except HeadraceError as error:
            await self.send(error_frame(error))
            await self.close(code=error.ws_close_code)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:  # noqa: ARG002
        """Act on one frame; a bad one gets an error and the connection stays."""
        try:
            self._dispatch(parse_frame(text_data))
        except HeadraceError as error:
            await self.send(error_frame(error))

    async def disconnect(self, code: int) -> None:  # noqa: ARG002
        """Stop the pumps; their streams go on or end as the tenant's policy says."""
        pumps = dict(self._pumps)
        await cancel_and_wait(*pumps.values())
        await asyncio.gather(*self._cancels, return_exceptions=True)
        for pump in pumps:
            if pump.started_here and not pump.ended and pump.stream_id is not None:
                await self._detach(pump.stream_id)

    def _dispatch(self, frame: Frame) -> None:
        if isinstance(frame, Generate | Resume):
            self._start_pump(frame)
        elif isinstance(frame, CancelFrame):
            task = asyncio.create_task(self._cancel(frame.stream_id))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)
        else:
            self._acknowledge(frame)

    def _start_pump(self, frame: Generate | Resume) -> None:
        if len(self._pumps) >= MAX_STREAMS_PER_CONNECTION:
            raise RateLimitError(
                f"This connection has {MAX_STREAMS_PER_CONNECTION} streams; wait for one to end.",
                retry_after_seconds=1.0,
            )
        pump = StreamPump(self.gateway, self.caller, self.send, frame)
        task = asyncio.create_task(pump.run())
        self._pumps[pump] = task
        task.add_done_callback(lambda _: self._pumps.pop(pump, None))

    async def _cancel(self, stream_id: str) -> None:
        try:
            await stream_cancel(
                gateway=self.gateway, tenant_id=self.caller.tenant.id, stream_id=stream_id, reason="client"
            )
        except HeadraceError as error:
            await self.send(error_frame(error, stream_id=stream_id))

    def _acknowledge(self, frame: Ack) -> None:
        for pump in self._pumps:
            if pump.stream_id == frame.stream_id:
                pump.acknowledge(frame.seq)

    async def _detach(self, stream_id: str) -> None:
        if self.caller.tenant.detached_policy is not DetachedPolicy.ABORT:
            return
        try:
            await stream_cancel(
                gateway=self.gateway,
                tenant_id=self.caller.tenant.id,
                stream_id=stream_id,
                reason="client_disconnected",
            )
        except HeadraceError as error:
            log.warning("detach_failed", stream_id=stream_id, error=str(error))

    def _authenticate(self, offered: list[str]) -> Caller:
        ticket = next((text.removeprefix(TICKET_PREFIX) for text in offered if text.startswith(TICKET_PREFIX)), None)
        if ticket is not None:
            return self._caller_of_ticket(ticket)
        caller = self.gateway.config.authenticate(presented_key(self.scope["headers"]))
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
        return Caller(tenant, user_id=ticket.user_id)
