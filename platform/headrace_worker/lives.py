"""Which worker processes of a deployment on this machine have ended without a word: a crash leaves no other trace.

Each process has an entry under its present incarnation, and takes it out when it ends in order. One whose lease is over
has died; whoever starts next finds it, and notes when.
"""

import logging
import socket

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire import redis_keys
from headrace_wire.functions import Reply

log = logging.getLogger(__name__)

KEPT_SECONDS = 30 * 86_400
"""Longer than processes live, with their incarnations."""


class Lives:
    """What one process says of itself, and learns of those before it."""

    def __init__(self, redis: "Redis", deployment: str, *, window_seconds: float) -> None:
        self._redis = redis
        self._key = redis_keys.worker_lives_key(deployment, socket.gethostname())
        self._window_ms = int(window_seconds * 1000)
        self._name = ""

    async def note(self, incarnation: str) -> int:
        """Say that this process lives under a new name; return how many others have died within the window.

        Redis away: nothing is known of others, so none has.
        """
        try:
            return await self._note(incarnation)
        except RedisError as error:
            log.warning("cannot read who died before: %s", error)
            return 0

    async def forget(self) -> None:
        """Hold nobody's death against anybody any more."""
        await self._quietly(self._redis.zremrangebyscore(self._key, 1, "+inf"))

    async def end(self) -> None:
        """Say that this process ends as it should."""
        if self._name:
            await self._quietly(self._redis.zrem(self._key, self._name))

    async def _note(self, incarnation: str) -> int:
        rows: Reply = await self._redis.zrange(self._key, 0, -1, withscores=True)
        moment: Reply = await self._redis.time()
        now = moment[0] * 1000 + moment[1] // 1000
        living = [name.decode() for name, died_at in rows if not died_at and name.decode() != self._name]
        leases: Reply = await self._redis.zmscore(redis_keys.incarnations_key(), living) if living else []
        dead = [name for name, lease in zip(living, leases, strict=True) if lease is None or lease <= now]
        pipeline = self._redis.pipeline(transaction=True)
        if self._name:
            pipeline.zrem(self._key, self._name)
        pipeline.zadd(self._key, {incarnation: 0, **dict.fromkeys(dead, now)})
        pipeline.zremrangebyscore(self._key, 1, now - self._window_ms)
        pipeline.expire(self._key, KEPT_SECONDS)
        pipeline.zcount(self._key, 1, "+inf")
        replies: Reply = await pipeline.execute()
        self._name = incarnation
        return int(replies[-1])

    async def _quietly(self, command: Reply) -> None:
        try:
            await command
        except RedisError as error:
            log.warning("cannot write of its own life: %s", error)
