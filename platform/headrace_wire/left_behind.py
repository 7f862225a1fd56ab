"""What gateways were reading when they died: found from the records of all streams that are alive.

Nothing is written down for it while gateways live.
"""

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct
from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.functions import Functions, Reply
from headrace_wire.messages import GenerateRequest

STREAMS_AT_ONCE = 500


class UnreadStream(Struct, frozen=True):
    """A stream that is alive and had a reader at a gateway that is not."""

    request: GenerateRequest
    credit: int
    """How far it may generate; 0 for no limit."""


class LeftBehind:
    """Typed calls around `adopt`."""

    def __init__(self, redis: "Redis", functions: Functions) -> None:
        self._redis = redis
        self._functions = functions

    async def adopt(self, adopted: Sequence[str], *, seconds: float) -> list[str]:
        """Keep the dead gateways in `adopted` for `seconds`, and return those that are the caller's from now on."""
        arguments: list[bytes | str | int] = [int(seconds * 1000), *adopted]
        found: Reply = await self._functions.call("adopt", [redis_keys.left_behind_key()], arguments)
        return [gateway.decode() for gateway in found]

    async def forget(self, gateway: str) -> None:
        """Nothing that the gateway read is without a reader any more."""
        await self._redis.zrem(redis_keys.left_behind_key(), gateway)

    async def read_by(self, gateway: str) -> list[UnreadStream]:
        """Return the streams that are alive and were read by a gateway."""
        unread = []
        alive = await self._alive()
        for begin in range(0, len(alive), STREAMS_AT_ONCE):
            stream_ids = alive[begin : begin + STREAMS_AT_ONCE]
            async with self._redis.pipeline(transaction=False) as pipe:
                for stream_id in stream_ids:
                    pipe.get(redis_keys.readers_key(stream_id))
                    pipe.hmget(redis_keys.stream_key(stream_id), ["request", "credit"])
                rows: list[Reply] = await pipe.execute()
            for readers, (request, credit) in zip(rows[::2], rows[1::2], strict=True):
                if request and gateway.encode() in (readers or b"").split():
                    # One that another release asked for, and that cannot be read here, is left as it is.
                    with suppress(codec.DecodeError):
                        unread.append(UnreadStream(codec.decode_request(request), int(credit or 0)))
        return unread

    async def _alive(self) -> list[str]:
        """Return the streams that have an owner, wait for one, or are suspended."""
        owners: Reply = await self._redis.zrange(redis_keys.incarnations_key(), 0, -1)
        async with self._redis.pipeline(transaction=True) as pipe:  # none moves from one to another meanwhile
            for owner in owners:
                pipe.hkeys(redis_keys.assigned_key(owner.decode()))
            pipe.zrange(redis_keys.deadlines_key(), 0, -1)
            pipe.zrange(redis_keys.suspended_key(), 0, -1)
            found: list[Reply] = await pipe.execute()
        return sorted({stream_id.decode() for row in found for stream_id in row})
