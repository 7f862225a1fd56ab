"""The little of HTTP that the thin application needs: one request read, one answer sent."""

import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from apps.api.error_rendering import error_body, error_headers
from apps.streams.transport import send_at_once, transport_of
from headrace_wire.errors import HeadraceError, PayloadTooLargeError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

_KEY_HEADERS = frozenset({b"authorization", b"api-key", b"x-api-key"})

MAX_BODY_BYTES = 8 * 2**20
"""The server refuses larger bodies on the wire; this holds also under another server."""


def presented_key(headers: Iterable[Header]) -> str | None:
    """Return the API key of a request: `Authorization: Bearer`, `api-key` or `x-api-key`."""
    found = {name: value.decode("latin-1").strip() for name, value in headers if name in _KEY_HEADERS}
    scheme, _, token = found.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return found.get(b"api-key") or found.get(b"x-api-key")


class ClientDisconnectedError(Exception):
    """The client left before its request was read."""


class Exchange:
    """One HTTP request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self._transport = transport_of(scope)
        self.started_at = time.perf_counter() if self._transport is None else self._transport.arrived_at
        """`time.perf_counter()` when the request had come in, whole; where its durations start."""
        self.request_id = f"req-{secrets.token_hex(8)}"
        self.stream_id = ""
        """Of the stream that the request became, for what is logged about it."""
        self.headers: list[Header] = []
        """Headers that every answer of this exchange carries."""
        self.answered = False

    def header(self, name: bytes) -> str | None:
        """Return a request header; names are lower case."""
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return None

    def bearer(self) -> str | None:
        """Return the presented API key: `Authorization: Bearer`, `api-key` or `x-api-key`."""
        return presented_key(self.scope["headers"])

    async def body(self) -> bytes:
        """Read the whole body.

        Raises:
            ClientDisconnectedError: the client left.
            PayloadTooLargeError: it is over the cap.
        """
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise PayloadTooLargeError(f"The request body is over {MAX_BODY_BYTES // 2**20} MiB.")
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def start(self, status: int, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """Send status and headers."""
        elapsed_ms = str(round((time.perf_counter() - self.started_at) * 1000)).encode()
        self.answered = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", content_type),
                    (b"x-request-id", self.request_id.encode()),
                    (b"openai-processing-ms", elapsed_ms),
                    *self.headers,
                    *headers,
                ],
            }
        )

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        """Send a part of the body; waits for the transport."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def write_now(self, chunk: bytes) -> None:
        """Send a part of the body that is not its last, past the event loop's turn where the transport can."""
        await send_at_once(self._transport, chunk, lambda: self.write(chunk))

    async def answer_json(self, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
        """Send a whole JSON answer."""
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, b"application/json", [length, *headers])
        await self.write(body, more=False)

    async def answer_empty(self, status: int) -> None:
        """Send a status without a body."""
        self.answered = True
        headers = [(b"x-request-id", self.request_id.encode()), *self.headers]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self.write(b"", more=False)

    async def answer_error(self, error: HeadraceError) -> None:
        """Send an error as its status and OpenAI's error body."""
        await self.answer_json(error.http_status, error_body(error), error_headers(error))
