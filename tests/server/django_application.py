"""A Django project in one module, for the tests that need Django's own handling of a client that leaves."""

import asyncio
import time
from collections.abc import AsyncIterator

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import path

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="for tests only", LOGGING_CONFIG=None)

_noted: dict[str, float] = {}
_changed = asyncio.Condition()


class Body:
    """A streamed body that is an iterator with `close()`, as DESIGN asks."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked = self._loop.call_later(60, lambda: None)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self._asked.cancel()
        self._asked = self._loop.call_later(0.2, lambda: self._loop.create_task(_note("paused")))
        return b"x" * 4096

    def close(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(_note("closed")))


async def _note(event: str) -> None:
    async with _changed:
        _noted.setdefault(event, time.monotonic())
        _changed.notify_all()


async def stream(request: HttpRequest) -> HttpResponseBase:
    return StreamingHttpResponse(Body(), content_type="text/event-stream")


async def journal(request: HttpRequest) -> HttpResponseBase:
    async with _changed:
        await _changed.wait_for(lambda: request.GET["event"] in _noted)
    return JsonResponse({"events": _noted})


urlpatterns = [path("stream", stream), path("journal", journal)]
application = get_asgi_application()
