"""Function calls over a link, for processes that make some with every request: all share one connection, in order."""

import asyncio
from collections.abc import Sequence

from redis.asyncio import Redis

from headrace_wire.functions import Call, Functions, Reply
from headrace_wire.redis_link import RedisLink


class LinkedFunctions(Functions):
    """`Functions` without redis-py in the way of a call, which costs more there than in Redis.

    A call that was under way when the connection ended raises; the next one opens another. Callers say themselves what
    may be repeated.
    """

    def __init__(self, redis: "Redis", url: str) -> None:
        """Load the library with `redis`, and call over links to `url`, the same server."""
        super().__init__(redis)
        self._url = url
        self._link: RedisLink | None = None
        self._opening = asyncio.Lock()

    async def aclose(self) -> None:
        """Hang up."""
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _run(self, calls: Sequence[Call]) -> list[Reply]:
        link = self._link if self._link is not None and self._link.is_open else await self._open()
        return await link.ask([self.command(call) for call in calls], together=True)

    async def _open(self) -> RedisLink:
        async with self._opening:
            if self._link is None or not self._link.is_open:
                self._link = await RedisLink.open(self._url, lost=_nobody)
            return self._link


def _nobody() -> None:
    pass
