"""Single flight: callers of the same static request share the stream that runs for it; each has its own record."""

from msgspec import Struct
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.admission import AdmissionTerms
from headrace_wire.functions import Functions, Reply
from headrace_wire.token_log import STREAM_MAX_SECONDS


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

    async def is_shared(self, stream_id: str) -> bool:
        """Say whether other callers than the first have the stream, or are about to read it."""
        riders: Reply = await self._redis.exists(redis_keys.riders_key(stream_id))
        return bool(riders)

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
