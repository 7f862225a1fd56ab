"""Single flight: callers of the same static request share the stream that runs for it; each has its own record."""

from msgspec import Struct
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.admission import AdmissionTerms
from headrace_wire.functions import Functions, Reply
from headrace_wire.token_log import STREAM_MAX_SECONDS

COMING_SECONDS = 15.0
"""Within which a caller who was given another one's stream has it read: until then the stream is not left."""


class KeepOrder(Struct, frozen=True, array_like=True):
    """On the record of a running stream: its answer is to be kept if it ends by itself."""

    member: str
    """Name of the entry among its tenant's: `<deployment id>:<digest of the request>`."""
    ttl_seconds: int
    max_bytes: int
    partition: str = ""
    """Of the tenant's questions, those that this one may be compared with; empty: with none."""
    likeness: bytes = b""
    """The question, in a form that others can be compared with."""


class Flight(Struct, frozen=True):
    """A static request, as admission takes it."""

    order: KeepOrder
    terms: AdmissionTerms
    """What a caller is held to who is given a running stream."""
    counts_tokens: bool
    """Whether that caller is charged for tokens."""
    may_ride: bool = True
    """False where the caller wants an answer of its own."""
    may_keep: bool = True
    """False where its answer must not be given to anybody else."""


class Left(Struct, frozen=True):
    """A caller has cancelled, and a stream that others are given goes on."""

    host: str
    """The stream that goes on."""
    is_last: bool
    """Nobody is left who has not cancelled: it is to be stopped."""


class Moved(Struct, frozen=True):
    """What a caller shared has failed, and it has a stream of its own instead."""

    to: str


def own_end(stream_id: str, host: str) -> str:
    """Return the name under which readers of `stream_id` are told that their caller has left `host`."""
    return f"{host}/left" if stream_id == host else stream_id


class Flights:
    """The calls; stateless, safe to share between tasks."""

    def __init__(self, redis: "Redis", functions: Functions) -> None:
        self._redis = redis
        self._functions = functions

    async def reads(self, stream_id: str, *, host: str) -> None:
        """Note that a caller who was given `host` is having it read: from now on its leaving counts."""
        await self._redis.hdel(redis_keys.coming_key(host), stream_id)

    async def abandon(self, stream_id: str) -> float:
        """Ask, of a stream that nobody reads, for how many seconds a caller who was given it may still come to read.

        0: nobody may, and no other caller is given it, until `take_up`.
        """
        key = redis_keys.stream_key(stream_id)
        return int(await self._functions.call("abandon", [key], [int(COMING_SECONDS * 1000)])) / 1000

    async def take_up(self, stream_id: str) -> None:
        """Let callers be given a stream again: it is read after all."""
        await self._redis.hdel(redis_keys.stream_key(stream_id), "abandoned")

    async def move(self, stream_id: str, *, to: str) -> None:
        """Have a caller whose shared stream failed find another one under the id that it knows."""
        await self._redis.hset(redis_keys.stream_key(stream_id), "second", to)

    async def leave(self, stream_id: str, *, tenant_id: str) -> Left | Moved | None:
        """End one caller's part in a shared stream; None where it is nobody else's, which is cancelled as any other.

        Where it has moved, nothing was done: the stream that it has now is to be left.

        Idempotent. Raises:
            redis.exceptions.RedisError: no answer; call again.
        """
        keys = [redis_keys.stream_prefix(), redis_keys.usage_key(), redis_keys.soft_limits_key()]
        reply: Reply = await self._functions.call("leave", keys, [stream_id, tenant_id, STREAM_MAX_SECONDS * 1000])
        if reply[0] == b"moved":
            return Moved(reply[1].decode())
        return Left(reply[1].decode(), bool(reply[2])) if reply[0] == b"left" else None
