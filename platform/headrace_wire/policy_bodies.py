"""Bodies of guardrail policies, as the control plane left them in Redis."""

from collections.abc import Awaitable, Callable, Sequence

from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.functions import Reply


def policy_bodies(redis: "Redis") -> Callable[[Sequence[str]], Awaitable[list[bytes | None]]]:
    """Return what reads bodies by their digests; None stands for one that is not there."""

    async def fetch(digests: Sequence[str]) -> list[bytes | None]:
        bodies: Reply = await redis.mget([redis_keys.guard_policy_key(digest) for digest in digests])
        return list(bodies)

    return fetch
