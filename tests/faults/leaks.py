"""What is left in Redis once nothing runs any more: everything that is not waiting for its TTL is a leak."""

import asyncio
import time

from msgspec import Struct
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.functions import Reply
from headrace_wire.messages import StreamState

LOOK_AGAIN_SECONDS = 0.25

_TERMINAL = {state.value.encode() for state in StreamState if state.is_terminal}
_WITHOUT_TTL = {
    redis_keys.snapshot_key(),
    redis_keys.snapshot_version_key(),
    redis_keys.keys_used_key(),
    redis_keys.incarnations_key(),
    redis_keys.workers_key(),
    redis_keys.gateways_key(),
    redis_keys.deadlines_key(),
    redis_keys.usage_key(),
    redis_keys.soft_limits_key(),
}
"""Tables of the whole installation; their entries are looked at below, or are swept (dead registrations)."""


class Leaks(Struct, frozen=True):
    """Names of what should not be there."""

    leases: list[str]
    """That have run out, and nobody took them away."""
    assigned: list[str]
    """Streams that an incarnation still owns."""
    queued: list[str]
    """Streams that wait although nobody waits for them."""
    unsettled: list[str]
    """Records of streams that have not ended."""
    keys: list[str]
    """Keys without a TTL that are no table of the installation."""

    def __len__(self) -> int:
        return len(self.leases) + len(self.assigned) + len(self.queued) + len(self.unsettled) + len(self.keys)

    def __bool__(self) -> bool:
        return len(self) > 0


async def leaks_left(redis: "Redis", *, seconds: float) -> Leaks:
    """Returns what is left after at most `seconds`, in which leases run out."""
    until = time.monotonic() + seconds
    while True:
        found = await _look(redis)
        if not found or time.monotonic() >= until:
            return found
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


async def _look(redis: "Redis") -> Leaks:
    now: Reply = await redis.time()
    expired: Reply = await redis.zrangebyscore(redis_keys.incarnations_key(), "-inf", now[0] * 1000)
    found = Leaks([name.decode() for name in expired], [], [], [], [])
    async for raw in redis.scan_iter("{hr*}:*", count=1000):
        key: str = raw.decode()
        if key.startswith(redis_keys.assigned_prefix()):
            streams: Reply = await redis.hkeys(key)
            found.assigned.extend(f"{key}: {stream.decode()}" for stream in streams)
        elif key.startswith(redis_keys.queue_prefix()):
            waiting: Reply = await redis.lrange(key, 0, -1)
            found.queued.extend(f"{key}: {stream.decode()}" for stream in waiting)
        elif not key.startswith(redis_keys.bell_prefix()) and key not in _WITHOUT_TTL:
            if await redis.ttl(key) == -1:
                found.keys.append(key)
            if key.startswith(redis_keys.stream_prefix()) and await _is_unsettled(redis, key):
                found.unsettled.append(key)
    return found


async def _is_unsettled(redis: "Redis", key: str) -> bool:
    state: Reply = await redis.hget(key, "state")
    return state not in _TERMINAL
