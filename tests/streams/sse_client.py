"""A client of the thin application within this process."""

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any

import msgspec

from apps.api.asgi import application
from apps.streams.transport import EXTENSION
from tests.support.snapshots import KEY_A

from .patience import PATIENCE


class SseClient:
    """A streamed request to the thin application, under a server that sends from synchronous code, as ours does."""

    paused = False
    client_timed_out = False
    stall_timeout_seconds = 60.0

    def __init__(self, **fields: Any) -> None:
        """`fields` are the request's, beside its message."""
        self.arrived_at = time.perf_counter()
        self.status = 0
        self.sent = b""
        messages = [{"role": "user", "content": "What leads the wheel?"}]
        self._body = msgspec.json.encode({"messages": messages, "stream": True, **fields})

    async def ask(self) -> None:
        """Send the request, as tenant A; returns once it is answered."""
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer " + KEY_A.reveal().encode())],
            "extensions": {EXTENSION: self},
        }
        await application(scope, self._receive, self._send)

    async def has(self, text: str) -> None:
        """Wait until a text was sent, and whoever sends it waits for the next one."""
        async with asyncio.timeout(PATIENCE):
            while text.encode() not in self.sent:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)
        for _turn in range(20):
            await asyncio.sleep(0)

    async def _receive(self) -> MutableMapping[str, Any]:
        body, self._body = self._body, b""
        if not body:
            await asyncio.Event().wait()  # it stays
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.status = message.get("status", self.status)
        self.sent += message.get("body", b"")

    # ---- the server's end

    @property
    def gate(self) -> "SseClient":
        return self

    def send_now(self, data: bytes) -> bool:
        self.sent += data
        return True

    async def wait_writable(self) -> None: ...

    def buffered_bytes(self) -> int:
        return 0

    def abort(self, reason: str) -> None: ...
