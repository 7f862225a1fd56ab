"""The server's one clock hand: looks over all connections a few times a second, whatever their number."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.server.gateway import GatewayServer

logger = logging.getLogger(__name__)

_MAX_PERIOD_SECONDS = 1.0
_MIN_PERIOD_SECONDS = 0.02


@asynccontextmanager
async def watch_deadlines(server: GatewayServer) -> AsyncIterator[None]:
    """While open, deadlines are enforced, each at most an eighth late.

    One sweep instead of a timer for each write: it costs about a microsecond for each connection, and no write, not
    even one made by the library underneath, can be without a deadline.
    """
    config = server.config
    shortest = min(
        config.stall_timeout_seconds,
        config.ping_interval_seconds,
        config.ping_timeout_seconds,
        config.handshake_timeout_seconds,
        config.header_timeout_seconds,
        config.body_timeout_seconds,
        config.keep_alive_seconds,
        config.application_close_seconds,
    )
    period = min(_MAX_PERIOD_SECONDS, max(_MIN_PERIOD_SECONDS, shortest / 8))
    task = asyncio.create_task(_sweep(server, period))
    try:
        yield
    finally:
        task.cancel()


async def _sweep(server: GatewayServer, period: float) -> None:
    while True:
        await asyncio.sleep(period)
        try:
            server.check_deadlines()
        except Exception:
            # A sweep that died would leave every deadline of the process unenforced.
            logger.exception("The deadline sweep failed.")
