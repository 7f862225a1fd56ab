"""The process' one `Gateway`, for the edges: started with the server, or by the first request where that did not."""

import asyncio

from django.conf import settings
from redis.exceptions import RedisError

from apps.streams.connections import ConnectionLimit
from apps.streams.gateway import Gateway
from apps.streams.limits import StreamLimit
from headrace_wire.errors import DependencyUnavailableError

_gateway: Gateway | None = None
_starting = asyncio.Lock()


async def current_gateway() -> Gateway:
    """Return the running gateway of this process.

    Raises:
        DependencyUnavailableError: it could not start because Redis does not answer.
    """
    if _gateway is not None:
        return _gateway
    return await start_gateway()


async def start_gateway() -> Gateway:
    """Start the gateway unless it runs.

    Raises:
        DependencyUnavailableError: Redis does not answer.
    """
    global _gateway  # noqa: PLW0603 - one per process is the point
    async with _starting:
        if _gateway is None:
            gateway = Gateway(
                redis_url=settings.REDIS_URL,
                secret_key=settings.SECRET_KEY,
                lease_seconds=settings.HEADRACE_LEASE_SECONDS,
                limit=StreamLimit(settings.HEADRACE_SOFT_STREAMS, settings.HEADRACE_MAX_STREAMS),
                connections=ConnectionLimit(settings.HEADRACE_USER_CONNECTIONS),
                prefer_seconds=settings.HEADRACE_PREFER_MS / 1000,
                semantic_seconds=settings.HEADRACE_SEMANTIC_MS / 1000,
                is_traced=settings.HEADRACE_TRACED,
            )
            try:
                await gateway.start()
            except RedisError as error:
                await gateway.stop()
                raise DependencyUnavailableError(
                    "The gateway cannot reach its stream store yet; try again.", retry_after_seconds=1.0
                ) from error
            _gateway = gateway
    return _gateway


async def stop_gateway() -> None:
    """Stop the gateway if it runs."""
    global _gateway  # noqa: PLW0603
    async with _starting:
        if _gateway is not None:
            await _gateway.stop()
            _gateway = None


def running_gateway() -> Gateway | None:
    """Return the gateway if it was started, without starting it (health, metrics, drain)."""
    return _gateway
