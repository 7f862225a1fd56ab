"""The HTTP side of a connection: deadlines for head and body, caps on both, and refusals that reach the client."""

# ruff: noqa: ANN401, N802, N815  Twisted ships no types; the camel-case names are its own.

import asyncio
import enum
import math
import time
from typing import TYPE_CHECKING, Any

from daphne.http_protocol import HTTPFactory
from twisted.internet.protocol import Protocol
from twisted.protocols.basic import LineReceiver
from twisted.web.http import HTTPChannel
from twisted.web.http_headers import Headers

from headrace.server.refusal import (
    BAD_REQUEST,
    BODY_TIMEOUT,
    HEAD_TIMEOUT,
    HEAD_TOO_LARGE,
    TOO_MANY_CONNECTIONS,
    Refusal,
)

if TYPE_CHECKING:
    from headrace.server.gateway import GatewayServer

LINGER_SECONDS = 1.0
UPLOAD_LINGER_SECONDS = 10.0
"""After a refusal, of a body or of anything else, what still comes is read and thrown away this long. Closing at once
would reset the connection, and a client in the middle of its upload would never see the answer (RFC 9112, 9.6)."""


class _Phase(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    RESPONSE = enum.auto()
    REFUSED = enum.auto()


class GatewayChannel(HTTPChannel):  # type: ignore[misc]  # Twisted ships no types
    """HTTP/1.1 on one connection.

    Twisted's own timeout restarts with every byte, so a client that sends one byte every minute is never timed out.
    The deadlines here run from the first byte to the last.
    """

    maxHeaders = 128
    totalHeadersSize = 16 * 1024

    def __init__(self) -> None:
        super().__init__()
        self.timeOut: float | None = None
        self._phase = _Phase.IDLE
        self.due = math.inf
        """When `check` has something to do."""

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._phase is _Phase.REFUSED:
            return
        if self._phase is _Phase.IDLE and not self.paused:
            self._phase = _Phase.HEAD
            self.setTimeout(self.factory.server.config.header_timeout_seconds)
        LineReceiver.dataReceived(self, data)

    def setTimeout(self, period: float | None) -> float | None:
        """Sets the deadline that `check` looks at. Twisted moves a timer instead, five times in each request: 40 us."""
        if self._phase is _Phase.REFUSED:  # its linger is shorter than the time between two looks
            self.due = math.inf
            before: float | None = super().setTimeout(period)
            return before
        before, self.timeOut = self.timeOut, period
        self.due = math.inf if period is None else time.monotonic() + period
        return before

    def resetTimeout(self) -> None:
        """Begins the running deadline anew."""
        self.setTimeout(self.timeOut)

    def allHeadersReceived(self) -> None:
        """The head is complete."""
        self._phase = _Phase.BODY
        self.setTimeout(self.factory.server.config.body_timeout_seconds)
        super().allHeadersReceived()

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:
        """Writes a response's head as one piece. Twisted makes four of each header, and looks at each piece thrice."""
        head = b"%b %b %b\r\n" % (version, code, reason)
        for name, values in headers.getAllRawHeaders():
            for value in values:
                head += b"%b: %b\r\n" % (name, value)
        self.transport.write(head + b"\r\n")

    def allContentReceived(self) -> None:
        """The request is complete; there is no deadline until the response is."""
        if self._phase is _Phase.REFUSED:
            return
        self._phase = _Phase.RESPONSE
        # Twisted restores the timeout it finds here when the response is done.
        self.setTimeout(self.factory.server.config.keep_alive_seconds)
        super().allContentReceived()

    def rawDataReceived(self, data: bytes) -> None:
        """Body bytes; what was pipelined behind a refused request is dropped."""
        if self._phase is not _Phase.REFUSED:
            super().rawDataReceived(data)

    def requestDone(self, request: Any) -> None:
        """The response is complete."""
        self._phase = _Phase.IDLE
        if self.factory.server.state.draining.is_set():
            self.persistent = 0
        if self.transport.buffered_bytes() > self.transport.bufferSize:
            # Twisted would go on with the requests that were pipelined behind this one; a client that reads no
            # answers could have hundreds of them made and kept for it.
            self.paused = True
            self.transport.pauseProducing()
        super().requestDone(request)

    def resumeProducing(self) -> None:
        """The write buffer is empty."""
        super().resumeProducing()
        if self.paused and self._phase is not _Phase.REFUSED:
            self.paused = False
            self.dataReceived(b"")

    def timeoutConnection(self) -> None:
        """A deadline passed."""
        if self._phase is _Phase.HEAD:
            self.refuse(HEAD_TIMEOUT)
        elif self._phase is _Phase.BODY:
            self.refuse(BODY_TIMEOUT)
        elif self._phase is _Phase.REFUSED:
            self.transport.abort("refused")
        else:
            self.loseConnection()

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: ARG002  # Twisted's signature
        """A line of the head is longer than all of it may be."""
        self.refuse(HEAD_TOO_LARGE)

    def _respondToBadRequestAndDisconnect(self) -> None:
        too_large = self._receivedHeaderSize > self.totalHeadersSize or self._receivedHeaderCount > self.maxHeaders
        self.refuse(HEAD_TOO_LARGE if too_large else BAD_REQUEST)

    def refuse(self, refusal: Refusal, path: bytes | None = None) -> None:
        """Answers instead of the application, then closes in a way that lets the client read the answer.

        `path` decides the form of the answer; by default it is that of the request whose head or body is being read.
        """
        if self._phase is _Phase.REFUSED:
            return
        self._phase = _Phase.REFUSED
        self.factory.server.state.refused_total += 1
        self.paused = True  # ends the parser's loop over what was already read
        self.transport.unregisterProducer()
        self.transport.write(refusal.response(getattr(self, "_path", b"") if path is None else path))
        self.transport.loseWriteConnection()
        self.transport.resumeProducing()
        self.setTimeout(UPLOAD_LINGER_SECONDS if refusal.status == 413 else LINGER_SECONDS)

    def drain(self) -> None:
        """Closes an idle connection; a running request, or one that is being sent, is served and closes it then."""
        if self._phase is _Phase.IDLE:
            self.loseConnection()

    def cut(self, reason: str) -> None:
        """Ends the connection, in the middle of a response if there is one."""
        exchange = self.requests[0].exchange if self.requests else None
        if exchange is not None:
            exchange.cut(reason)
        else:
            self.loseConnection()

    def check(self, now: float) -> None:  # noqa: ARG002  # a WebSocket's takes it
        """Called a few times a second, once it is `due`."""
        self.due = math.inf
        self.timeoutConnection()


class _RefusedConnection(Protocol):  # type: ignore[misc]  # Twisted ships no types
    """Answers a connection above the limit without reading its request."""

    due = math.inf
    """It ends by itself."""

    def connectionMade(self) -> None:
        self.transport.write(TOO_MANY_CONNECTIONS.response(b""))
        self.transport.loseWriteConnection()
        self._deadline = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.transport.abort, "refused")

    def connectionLost(self, reason: Any) -> None:  # noqa: ARG002  # Twisted's signature
        self._deadline.cancel()

    def drain(self) -> None:
        """It ends by itself."""

    def cut(self, reason: str) -> None:
        """Ends the connection."""
        self.transport.abort(reason)


class GatewayHTTPFactory(HTTPFactory):  # type: ignore[misc]  # Daphne ships no types
    """Makes a `GatewayChannel` for each accepted connection, up to the connection limit."""

    def __init__(self, server: "GatewayServer", request_class: type) -> None:
        super().__init__(server)
        self.timeOut = server.config.header_timeout_seconds
        self._request_class = request_class

    protocol = GatewayChannel

    def buildProtocol(self, addr: Any) -> Any:
        """Called for each accepted connection."""
        if self.server.state.connection_count >= self.server.config.max_connections:
            self.server.state.refused_total += 1
            return _RefusedConnection()
        channel = super().buildProtocol(addr)
        channel.requestFactory = self._request_class
        return channel

    def log(self, request: Any) -> None:
        """Twisted would format an access log line for each request and throw it away."""
