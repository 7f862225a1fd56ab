"""Clients of Redis as every process of Headrace wants them: no hidden retries, no hidden time limits.

redis-py 8 gives each socket a time limit of 5 s by default. On Python 3.11 it keeps that limit with `asyncio.wait_for`
around each command it sends, which starts a task per command and, worse, swallows a cancellation that arrives while the
command is being sent: a cancelled loop goes on for ever. Blocking reads, too, must be free to block. A dead peer is
noticed by TCP keep-alive, which redis-py turns on; a live one that is slow is waited for.

It also repeats a command by itself after a lost connection. Our calls say themselves what may be repeated.
"""

from collections.abc import Awaitable, Callable

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

CONNECT_SECONDS = 5.0


def connect(
    url: str,
    *,
    max_connections: int | None = None,
    on_connect: Callable[[AbstractConnection], Awaitable[None]] | None = None,
) -> "Redis":
    """Return a client of `url`. `on_connect` takes the place of redis-py's own handshake and has to call it."""
    client: Redis = Redis.from_url(
        url,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        max_connections=max_connections,
        redis_connect_func=on_connect,
    )
    return client
