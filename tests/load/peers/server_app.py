"""The ASGI application that both servers of the `server` case run: chat completions in form, with nothing behind them.

All streams get a token in the same step, as an engine gives them. It needs the standard library alone, and of ASGI
only what the standard names.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

STEP_SECONDS = 0.02
TTFT_SECONDS = 0.01
_EVENT = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'

_Message = MutableMapping[str, Any]


class _Steps:
    """A clock that all streams wait for; it stands still while nobody does."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None
        self._at = 0.0

    async def next(self) -> None:
        if self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            self._at = max(self._at + STEP_SECONDS, loop.time())
            loop.call_at(self._at, self._step)
        await asyncio.shield(self._waiting)

    def _step(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set_result(None)


_steps = _Steps()


async def application(
    scope: _Message, receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Awaitable[None]]
) -> None:
    """Serves one request."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": message["type"] + ".complete"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    request = json.loads(body)
    await asyncio.sleep(TTFT_SECONDS)
    answer = _stream if request.get("stream") else _plain
    await answer(send, request["max_tokens"])


async def _stream(send: Callable[[_Message], Awaitable[None]], tokens: int) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(tokens):
        if number:
            await _steps.next()
        await send({"type": "http.response.body", "body": _EVENT, "more_body": True})
    usage = b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % tokens
    await send({"type": "http.response.body", "body": usage})


async def _plain(send: Callable[[_Message], Awaitable[None]], tokens: int) -> None:
    message = {"role": "assistant", "content": " word" * tokens}
    body = json.dumps({"choices": [{"message": message}], "usage": {"completion_tokens": tokens}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
