"""WebSockets: Daphne's protocol with flow control, real close codes and a ping policy that tells slow from dead."""

# ruff: noqa: ANN401, N802, N803  Twisted and autobahn ship no types; the camel-case names are theirs.

import math
import random
import time
from typing import Any

from autobahn.websocket.types import ConnectionDeny
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol

from headrace.server.exchange import Exchange, Message
from headrace.server.flow_control import PING_TIMEOUT, RECEIVED_AT
from headrace.server.websocket_frames import (
    BINARY,
    INTERNAL_ERROR,
    SERVICE_RESTART,
    TEXT,
    check_close_code,
    close_reason,
    frame,
)

_FAILED_CLOSE_SECONDS = 5.0
"""How long a client that broke the protocol may take to answer the close frame."""
_NORMAL = 1000
_NO_CODE = 1005
_ABNORMAL = 1006


class GatewayWebSocket(WebSocketProtocol):  # type: ignore[misc]  # Daphne ships no types
    """One WebSocket connection, from its handshake on."""

    due = -math.inf
    """It is to be checked in each sweep."""
    exchange: "WebSocketExchange | None" = None
    handshake_deferred: Any = None
    _opened_at = 0.0
    _heard_at = 0.0
    _ping_at: float | None = None
    _ping_queue = 0
    _closing_at: float | None = None
    _closing_queue = 0

    # ---- the client's side

    def onConnect(self, request: Any) -> Any:
        """The client's handshake is complete: calls the application, which accepts or closes."""
        self._opened_at = self._heard_at = time.monotonic()
        request.headers.pop("daphne-root-path", None)
        return super().onConnect(request)

    def dataReceived(self, data: bytes) -> None:
        """Any byte shows that the client is alive. The base class formats a debug line first, at 5 us a frame."""
        self._heard_at = time.monotonic()
        self._dataReceived(data)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """A whole message came in."""
        if self.exchange is not None and not self.muted:
            content: Message = {"bytes": payload} if isBinary else {"text": payload.decode()}
            message = {"type": "websocket.receive", RECEIVED_AT: self.transport.arrived_at, **content}
            self.exchange.inbox.put_nowait(message)

    def onPing(self, payload: bytes) -> None:
        """Answers, unless the client leaves the answers unread: only the latest one is owed (RFC 6455, 5.5.3)."""
        if self.exchange is not None and not self.exchange.gate.paused:
            super().onPing(payload)

    def onCloseFrame(self, code: int | None, reasonRaw: bytes | None) -> bool | None:
        """The client says good-bye: the application learns it now, not once the client has taken what waits for it."""
        said_first = self.state == self.STATE_OPEN
        failed: bool | None = super().onCloseFrame(code, reasonRaw)
        if said_first and self.wasClean and self.exchange is not None:
            self.exchange.lost(self.remoteCloseCode, self.remoteCloseReason or "")
        return failed

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:  # noqa: ARG002
        """The connection is lost, after a close handshake or without."""
        if self.exchange is not None:  # None: the handshake failed before the application was called
            self.exchange.lost(code, reason or "")

    # ---- the server's side

    def accept(self, subprotocol: str | None, headers: dict[str, list[str]]) -> None:
        """Answers the handshake with 101."""
        handshake, self.handshake_deferred = self.handshake_deferred, None
        handshake.callback((subprotocol, headers))

    def deny(self, status: int, text: str) -> None:
        """Answers the handshake with an HTTP error."""
        if self.handshake_deferred is not None:
            handshake, self.handshake_deferred = self.handshake_deferred, None
            handshake.errback(ConnectionDeny(status, text))

    def write_frame(self, opcode: int, payload: bytes) -> None:
        """Sends one message; autobahn's own way costs six times as much when several frames go in one tick."""
        self.transport.write(frame(opcode, payload))

    def write_text_now(self, payload: bytes) -> None:
        """Sends one text message past the buffers where they are empty."""
        self.transport.write_now(frame(TEXT, payload))

    def close(self, code: int, reason: str) -> None:
        """Starts the close handshake behind what is still to be sent. `sendClose` refuses 1012 and 1013."""
        self.sendCloseFrame(code=check_close_code(code), reasonUtf8=close_reason(reason))

    def serverReject(self) -> None:
        """Daphne's word for a refused handshake."""
        self.deny(403, "Access denied")

    def dropConnection(self, abort: bool = False) -> None:  # noqa: ARG002  # autobahn's signature
        """Ends the connection behind what is still to be sent; a client that does not take it meets the stall deadline.

        Autobahn aborts when the client's close frame comes in, and our own close frame may not have left yet.
        """
        super().dropConnection(abort=False)

    # ---- deadlines

    def check(self, now: float) -> None:
        """Called a few times a second."""
        if self.state == self.STATE_CONNECTING:
            if now - self._opened_at > self.server.config.handshake_timeout_seconds:
                self.deny(503, "Service Unavailable")
        elif self.state == self.STATE_OPEN:
            self._check_alive(now)
        elif self.state == self.STATE_CLOSING:
            self._check_closing(now)

    def _queue(self) -> int:
        return int(self.transport.buffered_bytes() + self.transport.kernel_bytes())

    def _check_alive(self, now: float) -> None:
        config = self.server.config
        if self._ping_at is None or self._heard_at > self._ping_at:
            self._ping_at = None
            if now - self._heard_at > config.ping_interval_seconds:
                self.sendPing()
                self._ping_at, self._ping_queue = now, self._queue()
        elif self._is_slow():
            self._ping_at = now
        elif now - self._ping_at > config.ping_timeout_seconds:
            self.server.state.ping_timeout_total += 1
            self.transport.abort(PING_TIMEOUT)

    def _is_slow(self) -> bool:
        """The ping is still on its way, behind unread data, or its answer is: the stall deadline decides then."""
        queue, before = self._queue(), self._ping_queue
        self._ping_queue = queue
        reading_paused = self.exchange is not None and self.exchange.inbox.reading_paused
        return reading_paused or self.transport.buffered_bytes() > 0 or queue < before

    def _check_closing(self, now: float) -> None:
        """A slow client gets the tail of its stream and the close frame as long as it takes something."""
        queue = self._queue()
        if self._closing_at is None or queue < self._closing_queue:
            self._closing_at = now
        self._closing_queue = queue
        patience = _FAILED_CLOSE_SECONDS if self.failedByMe else self.transport.stall_timeout_seconds
        if now - self._closing_at > patience:
            # Not an abort: a reset would take from the client what it has received and not read.
            self.dropConnection(abort=False)

    def drain(self) -> None:
        """The server goes away: tells the client to come back elsewhere, not all in the same moment."""
        if self.state == self.STATE_OPEN and self.exchange is not None and not self.exchange.control.held:
            self._say_restart()

    def cut(self, reason: str) -> None:  # noqa: ARG002  # the client learns the code
        """Ends the connection behind what was sent and a last 1012."""
        self._say_restart()
        self.dropConnection()

    def _say_restart(self) -> None:
        delay_ms = int(random.uniform(0, self.server.config.drain_jitter_seconds) * 1000)  # noqa: S311  # no secret
        if self.state == self.STATE_OPEN:
            self.close(SERVICE_RESTART, f"service restart; retry_after_ms={delay_ms}")


class WebSocketExchange(Exchange):
    """A WebSocket and the application call behind it."""

    def __init__(self, protocol: GatewayWebSocket) -> None:
        super().__init__(protocol.transport, protocol.server.config.inbox_messages)
        self._protocol = protocol
        protocol.transport.unregisterProducer()  # the HTTP channel was it, up to the upgrade
        protocol.transport.registerProducer(self.gate, True)
        protocol.transport.tune_for_stream()

    async def send(self, message: Message) -> None:
        """See `Exchange.send`."""
        if self.gone_at is not None:
            await self.raise_gone()
        protocol = self._protocol
        if message["type"] != "websocket.send":
            self._control(message)
            return
        if protocol.state != protocol.STATE_OPEN:
            await self._not_open()
        text = message.get("text")
        if text is not None:
            protocol.write_frame(TEXT, text.encode())
        else:
            protocol.write_frame(BINARY, message["bytes"])
        if self.gate.paused:
            await self.wait_writable()

    def send_now(self, data: bytes) -> bool:
        """See `Exchange.send_now`."""
        protocol = self._protocol
        if protocol.state != protocol.STATE_OPEN or self.gate.paused or self.gone_at is not None:
            return False
        protocol.write_text_now(data)
        return True

    async def _not_open(self) -> None:
        if self._protocol.state == self._protocol.STATE_CONNECTING:
            raise RuntimeError("websocket.send was sent before websocket.accept.")
        await self.raise_gone()

    def _control(self, message: Message) -> None:
        protocol = self._protocol
        connecting = protocol.state == protocol.STATE_CONNECTING
        if message["type"] == "websocket.accept":
            if not connecting or protocol.handshake_deferred is None:
                raise RuntimeError("websocket.accept was sent twice or too late.")
            self._accept(message)
        elif message["type"] != "websocket.close":
            raise ValueError(f"{message['type']} cannot be sent over a WebSocket.")
        elif connecting:
            protocol.deny(403, "Access denied")
        else:
            code = message.get("code")
            protocol.close(_NORMAL if code is None else code, message.get("reason") or "")

    def _accept(self, message: Message) -> None:
        subprotocol = message.get("subprotocol")
        if subprotocol is not None and subprotocol not in self._protocol.websocket_protocols:
            raise ValueError(f"The client did not offer the subprotocol {subprotocol!r}.")
        headers: dict[str, list[str]] = {}
        for name, value in message.get("headers", ()):
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        self._protocol.accept(subprotocol, headers)

    def lost(self, code: int | None, reason: str) -> None:
        """The client is gone, or will be; `code` is its own, if it sent one. What is told first counts."""
        if self.gone_at is not None:
            return
        cut = self.control.close_reason
        self.inbox.put_nowait(
            {
                "type": "websocket.disconnect",
                "code": _ABNORMAL if cut else (code or _NO_CODE),
                "reason": cut or reason,
            }
        )
        self.client_gone()

    def ended(self) -> None:
        """See `Exchange.ended`."""
        protocol = self._protocol
        if protocol.state == protocol.STATE_CONNECTING:
            protocol.deny(500, "Internal Server Error")
        elif protocol.state == protocol.STATE_OPEN:
            protocol.close(INTERNAL_ERROR, "the application ended")


class GatewayWebSocketFactory(WebSocketFactory):  # type: ignore[misc]  # Daphne ships no types
    """Makes a `GatewayWebSocket` for each upgraded connection."""

    protocol = GatewayWebSocket

    def __init__(self, server: Any) -> None:
        super().__init__(server, server=server.server_name)
        self.setProtocolOptions(
            allowNullOrigin=True,
            failByDrop=False,
            maxMessagePayloadSize=server.config.max_message_bytes,
            maxFramePayloadSize=server.config.max_message_bytes,
            # Deadlines are those of `GatewayWebSocket.check`: autobahn's close timeout cuts slow readers off, and its
            # ping timeout takes a slow client for a dead one.
            openHandshakeTimeout=0,
            closeHandshakeTimeout=0,
        )
