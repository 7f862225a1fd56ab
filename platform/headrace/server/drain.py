"""How a server ends: readiness first, then no new connections, time for what runs, one line about the rest."""

import asyncio
import logging
import time
from collections import Counter

from headrace.server.gateway import GatewayServer
from headrace.server.websocket import GatewayWebSocket

logger = logging.getLogger(__name__)

_LAST_BYTES_SECONDS = 1.0
"""Time of what was cut to take the last bytes, the close code among them."""


async def drain(server: GatewayServer, hurry: asyncio.Event) -> None:
    """Ends the server's connections within `drain_deadline_seconds`; at once when `hurry` is set.

    WebSockets that the application does not hold get 1012 with a suggested delay as reason; those that it holds get it
    when it lets go, or at the deadline. HTTP responses that run are completed and close their connections.
    """
    config, state = server.config, server.state
    started_at = time.monotonic()
    state.drain_deadline = started_at + config.drain_notice_seconds + config.drain_deadline_seconds
    state.draining.set()
    logger.info("Draining: %d connections, %d requests, %d WebSockets.", *_sizes(server))
    await _until(hurry, config.drain_notice_seconds)
    server.stop_listening()
    for transport in tuple(state.connections):
        transport.protocol.drain()
    ended = asyncio.ensure_future(_all_ended(server))
    try:
        await _first(ended, hurry, state.drain_deadline - config.drain_cut_notice_seconds)
        state.closing.set()
        await _first(ended, hurry, state.drain_deadline)
    finally:
        ended.cancel()
    await _cut(server)
    logger.info("Drained in %.1f s.", time.monotonic() - started_at)


async def _all_ended(server: GatewayServer) -> None:
    while server.state.connections or server.exchanges:
        server.state.changed.clear()
        await server.state.changed.wait()


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


async def _first(ended: asyncio.Future[None], hurry: asyncio.Event, deadline: float) -> None:
    hurried = asyncio.ensure_future(hurry.wait())
    try:
        timeout = max(0.0, deadline - time.monotonic())
        await asyncio.wait((ended, hurried), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        hurried.cancel()


async def _cut(server: GatewayServer) -> None:
    """Ends what is left: a last 1012, then the connections, then the application calls."""
    if not server.state.connections and not server.exchanges:
        return
    cut: Counter[str] = Counter()
    for transport in tuple(server.state.connections):
        cut["WebSocket" if isinstance(transport.protocol, GatewayWebSocket) else "HTTP"] += 1
        transport.protocol.cut("drain")
    logger.warning(
        "The drain deadline cut %d HTTP and %d WebSocket connections; %d application calls were running.",
        cut["HTTP"],
        cut["WebSocket"],
        len(server.exchanges),
    )
    await _end_applications(server)
    ended = asyncio.ensure_future(_all_ended(server))
    await asyncio.wait((ended,), timeout=_LAST_BYTES_SECONDS)
    ended.cancel()
    for transport in tuple(server.state.connections):
        transport.abort("drain")


async def _end_applications(server: GatewayServer) -> None:
    tasks = [exchange.task for exchange in server.exchanges if exchange.task is not None]
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    _, running = await asyncio.wait(tasks, timeout=server.config.application_close_seconds)
    if running:
        logger.error("%d application calls ignored their cancellation.", len(running))


def _sizes(server: GatewayServer) -> tuple[int, int, int]:
    return server.state.connection_count, server.state.http_requests, server.state.websockets
