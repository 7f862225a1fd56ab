"""Answers that are kept for the same request: their form in Redis, and the calls that give, keep and forget them.

An entry is `<created ms>:<prompt tokens>:<completion tokens>:<finish reason>:<body>`, so that the function that gives
it can book it; the body is a `KeptAnswer`, compressed where that is worth it.
"""

import msgspec
import zstandard
from msgspec import Struct
from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.admission import AdmissionTerms, Rates, Refusal, RefusalKind
from headrace_wire.flights import KeepOrder
from headrace_wire.functions import Functions, Reply
from headrace_wire.messages import FinishReason, StreamState, Timings, Usage
from headrace_wire.request_queue.replies import rates_of
from headrace_wire.token_log import STREAM_MAX_SECONDS

COMPRESS_FROM_BYTES = 1024
MOST_BYTES = 1024 * 1024
"""Of one answer; a longer one is not kept."""
KEPT_SECONDS = 3600
"""Longest time that anything is kept."""

_PLAIN, _ZSTD = b"\0", b"\1"
_encoder = msgspec.msgpack.Encoder()


class KeptAnswer(Struct, frozen=True, array_like=True):
    """An answer as its log told it."""

    text: str
    positions: int
    """Position of its last token."""
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    timings: Timings


class Recalled(Struct, frozen=True):
    """A kept answer that was booked to its caller."""

    answer: KeptAnswer
    age_seconds: float
    rates: Rates = Rates()


class Kept(Struct, frozen=True):
    """What keeping an answer has come to."""

    bytes: int
    """Of all that is kept for the tenant now."""
    evicted: int
    """Answers that had to go for it, those used longest ago."""
    is_stored: bool


_decoder = msgspec.msgpack.Decoder(KeptAnswer)


def pack_answer(answer: KeptAnswer) -> bytes:
    """Return the body of an entry."""
    plain = _encoder.encode(answer)
    if len(plain) < COMPRESS_FROM_BYTES:
        return _PLAIN + plain
    packed = zstandard.ZstdCompressor().compress(plain)
    return _ZSTD + packed if len(packed) < len(plain) else _PLAIN + plain


def unpack_answer(body: bytes) -> KeptAnswer:
    """Read what `pack_answer` wrote.

    Raises:
        msgspec.DecodeError: it is no answer of this version.
        zstandard.ZstdError: likewise.
    """
    if body[:1] == _ZSTD:
        return _decoder.decode(zstandard.ZstdDecompressor().decompress(body[1:], max_output_size=8 * MOST_BYTES))
    return _decoder.decode(body[1:])


class KeptAnswers:
    """The calls; stateless apart from the connection, safe to share between tasks."""

    def __init__(self, redis: "Redis", functions: Functions) -> None:
        self._redis = redis
        self._functions = functions

    async def recall(
        self,
        *,
        member: str,
        stream_id: str,
        tenant_id: str,
        deployment: str,
        most_age_seconds: float,
        terms: AdmissionTerms,
        counts_tokens: bool,
    ) -> Recalled | Refusal | None:
        """Give a kept answer and book it under `stream_id`, in one step; None where there is none that is new enough.

        `terms` name the quotas that it counts in. A refusal has changed nothing.

        Raises:
            redis.exceptions.RedisError: no answer; it may be booked.
        """
        keys = [
            redis_keys.kept_answer_prefix(tenant_id) + member,
            redis_keys.kept_answers_used_key(tenant_id),
            redis_keys.bucket_prefix(),
            redis_keys.budget_prefix(),
            redis_keys.usage_key(),
            redis_keys.soft_limits_key(),
        ]
        age = int(min(most_age_seconds, KEPT_SECONDS) * 1000)
        args: list[bytes | str | int] = [member, stream_id, tenant_id, deployment, age, codec.encode(terms)]
        reply: Reply = await self._functions.call("recall", keys, [*args, int(counts_tokens)])
        if reply[0] == b"refused":
            _, kind, quota_id, retry_ms, _ = reply
            retry = int(retry_ms)
            return Refusal(RefusalKind(kind.decode()), quota_id.decode(), retry / 1000 if retry >= 0 else -1)
        if reply[0] == b"none":
            return None
        _, age_ms, body, rates = reply
        return Recalled(unpack_answer(body), int(age_ms) / 1000, rates_of(rates))

    async def keep(self, order: KeepOrder, tenant_id: str, answer: KeptAnswer) -> Kept:
        """Keep an answer; those used longest ago go where the tenant's room is full."""
        body = pack_answer(answer)
        head = f"{answer.usage.prompt_tokens}:{answer.usage.completion_tokens}:{answer.finish_reason.value}:"
        if len(body) > MOST_BYTES:
            return Kept(0, 0, is_stored=False)
        args: list[bytes | str | int] = [
            *(order.member, head.encode() + body, min(order.ttl_seconds, KEPT_SECONDS) * 1000, order.max_bytes),
            *(order.partition, order.likeness),
        ]
        keys = redis_keys.kept_answers_keys(tenant_id)
        stored, total, evicted = await self._functions.call("keep", keys, args)
        return Kept(int(total), int(evicted), bool(stored))

    async def alike(self, tenant_id: str, partition: str) -> dict[str, bytes]:
        """Return the questions of a partition of the tenant's, by the names of their answers."""
        rows: Reply = await self._redis.hgetall(redis_keys.kept_alike_prefix(tenant_id) + partition)
        return {name.decode(): likeness for name, likeness in rows.items()}

    async def enter(self, stream_id: str, *, tenant_id: str, deployment: str, log_ttl_seconds: int) -> None:
        """Make the record of a stream that ended as it began: its log is there, for who may come for it again."""
        keep = (log_ttl_seconds + STREAM_MAX_SECONDS) * 1000
        args: list[bytes | str | int] = [
            *(tenant_id, deployment, StreamState.FINISHED.value, log_ttl_seconds * 1000, keep)
        ]
        await self._functions.call("enter", [redis_keys.stream_key(stream_id)], args)

    async def next_finished(self, *, timeout_seconds: float) -> str | None:
        """Return a stream whose answer is to be kept, each to one caller; waits. None: there was none in time."""
        reply: Reply = await self._redis.blpop([redis_keys.finished_answers_key()], timeout=timeout_seconds)
        return reply[1].decode() if reply else None

    async def land(self, stream_id: str, tenant_id: str, order: KeepOrder) -> None:
        """Give a finished stream to no new caller any more; its record needs the question no longer."""
        keys = [redis_keys.flight_key(tenant_id, order.member), redis_keys.stream_key(stream_id)]
        rest = codec.encode(msgspec.structs.replace(order, partition="", likeness=b"")) if order.likeness else b""
        await self._functions.call("land", keys, [stream_id, rest])

    async def order_of(self, stream_id: str) -> tuple[str, str, KeepOrder] | None:
        """Return tenant, deployment and order of a stream; None where its answer is not to be kept."""
        row: Reply = await self._redis.hmget(redis_keys.stream_key(stream_id), ["tenant", "deployment", "keep"])
        tenant_id, deployment, order = row
        if not tenant_id or not deployment or not order:
            return None
        return tenant_id.decode(), deployment.decode(), codec.decode(order, KeepOrder)
