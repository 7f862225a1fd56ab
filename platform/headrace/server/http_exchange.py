"""HTTP requests: Daphne's request object with a body cap, and the exchange that streams its response."""

# ruff: noqa: ANN401, N802  Twisted ships no types; the camel-case names are its own.

from typing import TYPE_CHECKING, Any

from daphne.http_protocol import WebRequest
from daphne.server import Server
from twisted.web.http import NO_BODY_CODES, Request

from headrace.server.exchange import Exchange, Message
from headrace.server.refusal import APPLICATION_FAILED, BAD_REQUEST, DRAINING, body_too_large
from headrace.server.response_head import ResponseHeaders

if TYPE_CHECKING:
    from headrace.server.request_limits import GatewayChannel

_INTERNAL_HEADERS = (b"Daphne-Root-Path",)
"""Headers with which Daphne would let a client choose the application's root path."""
_TEXT_HEADERS = (b"Sec-WebSocket-Protocol", b"X-Forwarded-For", b"X-Forwarded-Port", b"X-Forwarded-Proto")
"""Headers that Daphne decodes and that are not worth a 500 with a traceback when they are no text."""


class GatewayRequest(WebRequest):  # type: ignore[misc]  # Daphne ships no types
    """One request of a `GatewayChannel`."""

    exchange: "HttpExchange | None" = None
    _body_bytes = 0
    _response_started: bool
    """Daphne's."""

    def __init__(self, channel: "GatewayChannel", queued: object) -> None:
        # Twisted would read every form into memory to parse it; Django does that itself.
        super().__init__(channel, queued, parsePOSTFormSubmission=False)
        self.responseHeaders = ResponseHeaders()

    def gotLength(self, length: int | None) -> None:
        """The head is complete; `length` is the body's, None when it is chunked."""
        limit = self.server.config.max_body_bytes
        refused = length is not None and length > limit
        super().gotLength(0 if refused else length)
        if refused:
            self.requestHeaders.removeHeader(b"Expect")  # or Twisted asks for the body all the same
            self.channel.refuse(body_too_large(limit))

    def handleContentChunk(self, data: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(data)
        limit = self.server.config.max_body_bytes
        if self._body_bytes <= limit:
            super().handleContentChunk(data)
        else:
            self.channel.refuse(body_too_large(limit))

    def process(self) -> Any:
        """The request is complete: calls the application."""
        for name in _INTERNAL_HEADERS:
            self.requestHeaders.removeHeader(name)
        for name in _TEXT_HEADERS:
            values = self.requestHeaders.getRawHeaders(name)
            if values and not all(value.isascii() for value in values):
                self.channel.refuse(BAD_REQUEST, self.path)
                return None
        if self.requestHeaders.hasHeader(b"Upgrade") and self.server.state.draining.is_set():
            self.channel.refuse(DRAINING, self.path)
            return None
        return super().process()

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:  # noqa: ARG002  # Daphne's signature
        """Daphne found something wrong with the request, or failed on it."""
        self.channel.refuse(BAD_REQUEST if status < 500 else APPLICATION_FAILED, self.path)

    def handle_reply(self, message: Message) -> None:
        """Writes a part of the response, as Daphne does: it logs each, and goes through a proxy to Twisted's names."""
        if self.finished or self.channel is None:
            return
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "http.response.body":
            self._write_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            raise ValueError(f"Cannot handle message type {message['type']}!")

    def _begin(self, message: Message) -> None:
        if self._response_started:
            raise ValueError("HTTP response has already been started")
        self._response_started = True
        self.setResponseCode(message["status"])
        headers = self.responseHeaders
        headers.add_all(message.get("headers", ()))
        if not headers.hasHeader(b"server"):
            headers.add_all([(b"server", self.server.server_name.encode())])

    def _write_body(self, body: bytes, *, is_last: bool) -> None:
        if not self._response_started:
            raise ValueError("HTTP response has not yet been started but got http.response.body")
        if self.startedWriting and (self.method == b"HEAD" or self.code in NO_BODY_CODES):
            body = b""  # Daphne would send a streamed body in answer to a HEAD
        Request.write(self, body)
        if is_last:
            self.finish()

    def finish(self) -> None:
        """The response is complete."""
        if self.application_queue:
            self.send_disconnect()
        Request.finish(self)
        self.server.protocol_disconnected(self)

    def stream(self, data: bytes) -> None:
        """Writes a part of a chunked body; Twisted takes four times as long for it."""
        self.channel.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class HttpExchange(Exchange):
    """A request and its response."""

    def __init__(self, request: GatewayRequest) -> None:
        super().__init__(request.channel.transport, request.server.config.inbox_messages)
        self._request = request
        self._draining = request.server.state.draining
        self._streaming = False
        self._chunked = False
        self.complete = False

    async def send(self, message: Message) -> None:
        """See `Exchange.send`."""
        if self.gone_at is not None:
            await self.raise_gone()
        if message["type"] != "http.response.body" or not message.get("more_body", False):
            self._send_plain(message)
            return
        if self._chunked:
            if data := message.get("body", b""):
                self._request.stream(data)
        else:
            self._send_streamed(message)
        if self.gate.paused:
            await self.wait_writable()

    def send_now(self, data: bytes) -> bool:
        """See `Exchange.send_now`."""
        if not self._chunked or self.gate.paused or self.gone_at is not None or not data:
            return False
        self.transport.write_now(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def _send_plain(self, message: Message) -> None:
        if self.complete:
            raise RuntimeError(f"{message['type']} was sent after the response was complete.")
        if message["type"] == "http.response.start":
            Server.check_headers_type(message)
            if self._draining.is_set():
                self._request.responseHeaders.setRawHeaders(b"connection", [b"close"])
        else:
            self._stop_streaming()
        self._request.handle_reply(message)
        if message["type"] == "http.response.body":
            self.transport.flush_now()  # it is the last part: whoever sent it measures next when that was

    def _send_streamed(self, message: Message) -> None:
        """Sends a part of the body through Twisted: the first one, and those of a body that is not chunked."""
        request = self._request
        if not self._streaming:
            if self.complete:
                raise RuntimeError("A body was sent after the response was complete.")
            self._streaming = True
            request.channel.registerProducer(self.gate, True)
            if not request.responseHeaders.hasHeader(b"content-length"):
                # A body of known length is a file or the like: that one shall be fast over a long line.
                self.transport.tune_for_stream()
        request.handle_reply(message)
        self._chunked = bool(request.chunked)

    def _stop_streaming(self) -> None:
        if self._streaming:
            self._streaming = self._chunked = False
            self._request.channel.unregisterProducer()
            self.gate.resumeProducing()

    def release(self) -> None:
        """See `Exchange.release`."""
        super().release()
        self._request.exchange = None

    def request_done(self) -> None:
        """Daphne's word for both ends: the response is complete, or the connection is lost."""
        if self._request.finished:
            self.complete = True
        else:
            self.client_gone()

    def ended(self) -> None:
        """See `Exchange.ended`."""
        if self.complete or self.gone_at is not None:
            return
        if self._request.startedWriting:
            self._request.channel.cut("application ended")
        else:
            self._request.channel.refuse(APPLICATION_FAILED, self._request.path)

    def cut(self, reason: str) -> None:
        """Ends the connection so that what was sent arrives and cannot be taken for the whole response."""
        self.client_gone()
        self.inbox.put_nowait({"type": "http.disconnect"})
        if self._request.chunked or self._request.responseHeaders.hasHeader(b"content-length"):
            self._request.channel.loseConnection()
        else:
            self.transport.abort(reason)  # the end of the connection would be the end of the response
