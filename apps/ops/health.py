"""`/livez`, `/readyz` and `/metrics`: an ASGI application in front of Django, which answers without a database."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from apps.ops.metrics import metrics_allowed, metrics_render

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Readiness = Callable[[], list[str]]
"""Says why this process must not get new streams; empty when it may."""

HEALTH_PATHS = frozenset({"/livez", "/readyz", "/metrics"})

_JSON = b"application/json"


class HealthApplication:
    """Serves `HEALTH_PATHS`; other paths are the caller's business."""

    def __init__(self, *, not_ready: Readiness, metrics_token: str | None) -> None:
        """`not_ready` is asked for each `/readyz`; without a token `/metrics` is for loopback only."""
        self._not_ready = not_ready
        self._metrics_token = metrics_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Answers one request."""
        if scope["method"] not in {"GET", "HEAD"}:
            await _answer(scope, send, 405, _JSON, b'{"status":"method not allowed"}')
        elif scope["path"] == "/livez":
            await _answer(scope, send, 200, _JSON, b'{"status":"alive"}')
        elif scope["path"] == "/readyz":
            reasons = self._not_ready()
            body = msgspec.json.encode({"status": "not ready" if reasons else "ready", "reasons": reasons})
            await _answer(scope, send, 503 if reasons else 200, _JSON, body)
        elif not metrics_allowed(scope, token=self._metrics_token):
            await _answer(scope, send, 403, _JSON, b'{"status":"forbidden"}')
        else:
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            content_type, body = await asyncio.to_thread(metrics_render, accept)
            await _answer(scope, send, 200, content_type.encode(), body)


async def _answer(scope: Scope, send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
