"""What all streaming answers over HTTP share."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from apps.api.http import ClientDisconnectedError, Exchange
from headrace_wire.cancellation import cancel_and_wait

EVENT_STREAM = b"text/event-stream; charset=utf-8"
SSE_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


async def until_disconnect(exchange: Exchange, pump: Coroutine[Any, Any, None]) -> None:
    """Run the pump to its end; stop it when the client leaves.

    Raises:
        ClientDisconnectedError: the client left first.
    """
    serving = asyncio.create_task(pump)
    leaving = asyncio.create_task(_disconnected(exchange))
    try:
        await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            raise ClientDisconnectedError
        serving.result()
    finally:
        await cancel_and_wait(serving, leaving)


async def _disconnected(exchange: Exchange) -> None:
    while (await exchange.receive())["type"] != "http.disconnect":
        pass
