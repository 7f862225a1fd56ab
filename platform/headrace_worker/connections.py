"""The connection that appends go over.

redis-py reconnects by itself, before a command, where it finds its connection closed. That is wrong for appends: a
Redis that restarted may have lost its last second, and the next entry must not be written after the hole. So this
connection reports each reconnect before it carries a command.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from headrace_wire.redis_client import connect


class ReconnectedError(RedisConnectionError):
    """The connection is new: compare logs with memory before anything is appended."""


class GuardedConnection:
    """One connection that raises `ReconnectedError` instead of silently becoming another one."""

    def __init__(self, url: str) -> None:
        self._may_connect = True
        self.redis: Redis = connect(url, max_connections=1, on_connect=self._connected)

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Allow new connections inside: the caller compares logs with memory there."""
        self._may_connect = True
        try:
            yield
        finally:
            self._may_connect = False

    async def _connected(self, connection: AbstractConnection) -> None:
        if not self._may_connect:
            raise ReconnectedError("new connection")
        await connection.on_connect()
