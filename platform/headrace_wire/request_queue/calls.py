"""Waiting, ownership and the end of streams: typed calls of the Redis functions that decide over them.

One owner at a time holds a stream under an `epoch`; ownership comes from `claim` (a worker), or from `reap` and
`cancel` (a gateway that brings the stream to its end). Every function checks the owner, so a late call changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.admission import AdmissionTerms
from headrace_wire.flights import Flight
from headrace_wire.functions import Call, Functions, Reply
from headrace_wire.ids import GATEWAY_KIND
from headrace_wire.messages import (
    Cancel,
    ControlMessage,
    Credit,
    FinishReason,
    GenerateRequest,
    StreamState,
    Usage,
)
from headrace_wire.request_queue.replies import (
    RECORD_FIELDS,
    Admission,
    CancelOutcome,
    Claimed,
    GivenBack,
    Idempotency,
    LeaseLostError,
    Place,
    Reaped,
    Renewal,
    StreamRecord,
    Unreadable,
    admission,
    claimed_streams,
    place,
    stream_record,
    taken_stream,
)
from headrace_wire.request_queue.settlement import TOMBSTONE_SECONDS, settle_all, settle_call
from headrace_wire.token_log import STREAM_MAX_SECONDS

UNLISTED_GRACE_SECONDS = 2.0
"""How long a stream may be assigned to a worker that does not list it, before it goes back to the queue."""

SUSPENDED_MAX_SECONDS = 3600.0
"""How long a stream may wait for its reader to come on; then it ends as cancelled, and its text stays readable."""

WAKE_MS = 10_000

MAX_ATTEMPTS = 3
"""Owners that a stream may lose before it fails."""


class RequestQueue:
    """The calls; stateless apart from the connection, safe to share between tasks."""

    def __init__(self, redis: "Redis", functions: Functions) -> None:
        self._redis = redis
        self._functions = functions

    # ---- gateways

    def admit_call(  # noqa: PLR0913  all that one decision goes by
        self,
        request: GenerateRequest,
        *,
        queue_limit: int,
        queue_timeout_seconds: float,
        idempotency: Idempotency | None = None,
        terms: AdmissionTerms | None = None,
        prefix: Sequence[bytes] = (),
        prefer_seconds: float = 0.0,
        drafts: bytes = b"",
        flight: Flight | None = None,
    ) -> Call:
        """Return the admission call; `parse_admission` reads its answer.

        `prefix`: hashes of the prompt's blocks; for `prefer_seconds` it is left to a worker that holds these.
        `drafts`: of which drafts it may be the prompt (`draft_budget.claim_of`). A flight has no idempotency key.
        """
        keys = [
            redis_keys.stream_prefix(),
            redis_keys.queue_key(request.deployment),
            redis_keys.bucket_prefix(),
            redis_keys.budget_prefix(),
        ]
        args: list[bytes | str | int] = [
            request.stream_id,
            request.tenant_id,
            request.deployment,
            codec.encode(request),
            queue_limit,
            int(queue_timeout_seconds * 1000),
            STREAM_MAX_SECONDS * 1000,
            request.log_ttl_seconds * 1000,
            request.window,
            codec.encode(terms or AdmissionTerms(0, request.sampling.max_tokens)),
            b"".join(prefix),
            int(prefer_seconds * 1000),
            drafts,
        ]
        if idempotency is not None:
            keys.append(redis_keys.idempotency_key(request.tenant_id, idempotency.key_digest))
            keep = (request.log_ttl_seconds + TOMBSTONE_SECONDS) * 1000
            args += [f"{request.stream_id}:{idempotency.body_digest}:{idempotency.created_at}", keep]
        elif flight is not None:
            keys.append(redis_keys.flight_key(request.tenant_id, flight.order.member))
            keys += [redis_keys.usage_key(), redis_keys.soft_limits_key()]
            args += [
                *(request.stream_id, STREAM_MAX_SECONDS * 1000),
                codec.encode(flight.order) if flight.may_keep else b"",
                codec.encode(flight.terms) if flight.may_ride else b"",
                int(flight.counts_tokens),
            ]
        return "admit", keys, args

    @staticmethod
    def parse_admission(reply: Reply) -> Admission:
        """Read admission's answer."""
        return admission(reply)

    async def cancel(
        self, stream_id: str, *, tenant_id: str, reason: str, incarnation: str, is_forced: bool = True
    ) -> tuple[CancelOutcome, int]:
        """Stop a stream of this tenant. On QUEUED the caller owns it under the returned epoch and must end it.

        Not `is_forced`: only one that nobody serves is stopped; any other goes on.
        """
        keys = [
            redis_keys.stream_key(stream_id),
            redis_keys.queue_prefix(),
            redis_keys.control_prefix(),
            redis_keys.assigned_key(incarnation),
            redis_keys.suspended_key(),
            redis_keys.stream_prefix(),
        ]
        message = codec.encode(Cancel(stream_id, reason)) if is_forced else b""
        where, epoch = await self._functions.call("cancel", keys, [stream_id, tenant_id, reason, incarnation, message])
        return CancelOutcome(where.decode()), int(epoch)

    async def reap(self, incarnation: str, *, limit: int = 64) -> Reaped:
        """Take over from dead owners. The caller brings on what it took, and publishes the ends of what was settled."""
        keys = [
            redis_keys.incarnations_key(),
            redis_keys.assigned_key(incarnation),
            redis_keys.assigned_prefix(),
            redis_keys.stream_prefix(),
            redis_keys.suspended_key(),
            redis_keys.deadlines_key(),
            redis_keys.queue_prefix(),
            redis_keys.left_behind_key(),
        ]
        args: list[bytes | str | int] = [incarnation, limit, int(SUSPENDED_MAX_SECONDS * 1000), f"{GATEWAY_KIND}-"]
        dead, taken, settled = await self._functions.call("reap", keys, args)
        return Reaped(
            [who.decode() for who in dead],
            [taken_stream(row) for row in taken],
            [stream_id.decode() for stream_id in settled],
        )

    async def credit(self, positions: Sequence[tuple[str, int]]) -> int:
        """Let streams generate up to these positions; returns how many got more than they had.

        A position is absolute and only ever raises: repeated, late or reordered calls do no harm.
        """
        args: list[bytes | str | int] = []
        for stream_id, up_to in positions:
            args += [stream_id, up_to, codec.encode(Credit(stream_id, up_to))]
        keys = [
            redis_keys.stream_prefix(),
            redis_keys.control_prefix(),
            redis_keys.queue_prefix(),
            redis_keys.bell_prefix(),
            redis_keys.suspended_key(),
        ]
        return int(await self._functions.call("credit", keys, args))

    async def tell(self, messages: Sequence[tuple[str, ControlMessage]]) -> int:
        """Send control messages to owners of streams (or to `@<incarnation>`); returns how many had one."""
        args: list[bytes | str | int] = []
        for target, message in messages:
            args += [target, codec.encode(message)]
        keys = [redis_keys.control_prefix(), redis_keys.stream_prefix()]
        return int(await self._functions.call("tell", keys, args))

    async def offer(self, stream_ids: Sequence[str]) -> int:
        """Let any worker have what was left to preferred ones; returns how many of these streams still waited."""
        keys = [redis_keys.stream_prefix(), redis_keys.queue_prefix()]
        return int(await self._functions.call("offer", keys, list(stream_ids)))

    async def places(self, stream_ids: Sequence[str]) -> list[Place | None]:
        """Return where waiting streams stand; None for one that does not wait (any more)."""
        keys = [redis_keys.stream_prefix(), redis_keys.queue_prefix()]
        return [place(row) for row in await self._functions.call("places", keys, list(stream_ids))]

    async def waiting(self, deployment: str) -> int:
        """Return how many streams wait for a deployment."""
        return int(await self._redis.scard(redis_keys.waiting_key(deployment)))

    async def record(self, stream_id: str) -> StreamRecord | None:
        """Return the record, or None when there is none (any more). The caller compares the tenant."""
        return stream_record(await self._redis.hmget(redis_keys.stream_key(stream_id), RECORD_FIELDS))

    async def prompt_tokens(self, stream_id: str) -> int:
        """Return how long the prompt of a stream is; 0 once it has ended, and where its worker makes the ids."""
        row: Reply = await self._redis.hmget(redis_keys.stream_key(stream_id), ["request"])
        try:
            return len(codec.decode_request(row[0]).prompt_ids) // 4 if row[0] else 0
        except codec.DecodeError:  # of another release
            return 0

    # ---- owners

    async def enlist(self, incarnation: str, *, lease_seconds: float, channels: Sequence[str]) -> None:
        """Start the lease of a new incarnation and create its channels.

        Raises:
            LeaseLostError: the name was used before.
        """
        keys = [redis_keys.incarnations_key(), *channels]
        if not await self._functions.call("enlist", keys, [incarnation, int(lease_seconds * 1000)]):
            raise LeaseLostError(incarnation)

    async def renew(
        self,
        incarnation: str,
        *,
        lease_seconds: float,
        owned: Sequence[tuple[str, int, int]],
        channels: Sequence[str],
        serving: tuple[str, int] | None = None,
    ) -> Renewal:
        """Extend the lease; `owned` lists (stream id, epoch, tokens generated in all) of everything worked on.

        `serving`: the deployment that a worker serves, and how many streams it runs at once.

        Raises:
            LeaseLostError: it had ended; nothing was extended.
        """
        keys = [
            redis_keys.incarnations_key(),
            redis_keys.assigned_key(incarnation),
            redis_keys.stream_prefix(),
            redis_keys.queue_prefix(),
            redis_keys.bell_prefix(),
            *channels,
        ]
        grace_ms = int(UNLISTED_GRACE_SECONDS * 1000)
        args: list[bytes | str | int] = [incarnation, int(lease_seconds * 1000), grace_ms, *(serving or ("", 0))]
        for stream_id, epoch, generated in owned:
            args += [stream_id, epoch, generated]
        alive, lost, cancelled = await self._functions.call("renew", keys, args)
        if not alive:
            raise LeaseLostError(incarnation)
        pairs = [text.decode() for text in cancelled]
        return Renewal(frozenset(i.decode() for i in lost), dict(zip(pairs[::2], pairs[1::2], strict=True)))

    async def claim(
        self,
        incarnation: str,
        *,
        deployment: str,
        want: int,
        spare: int = 0,
        serving: Mapping[str, int] = MappingProxyType({}),
        unreadable: Callable[[Unreadable], None] | None = None,
    ) -> list[Claimed]:
        """Take up to `want` waiting streams, and then up to `spare` of tenants that have little.

        `serving` says of how many streams of each tenant this worker has the places taken. `unreadable` is told of
        streams that are the worker's now, and whose requests it cannot read; without it, one raises `DecodeError`.

        Raises:
            LeaseLostError: this incarnation may not claim any more.
        """
        keys = [
            redis_keys.queue_key(deployment),
            redis_keys.incarnations_key(),
            redis_keys.assigned_key(incarnation),
            redis_keys.stream_prefix(),
        ]
        args: list[bytes | str | int] = [incarnation, want, spare]
        for tenant_id, count in serving.items():
            args += [tenant_id, count]
        rows = await self._functions.call("claim", keys, args)
        if rows == b"lost":
            raise LeaseLostError(incarnation)
        return claimed_streams(rows, unreadable)

    async def wake(self, incarnation: str) -> None:
        """End a worker's wait for its `Bell`, so that it does not hear one that is meant for others."""
        await self._redis.lpush(redis_keys.own_bell_key(incarnation), "1")
        await self._redis.pexpire(redis_keys.own_bell_key(incarnation), WAKE_MS)

    async def mark(self, states: Sequence[tuple[str, int, StreamState, str]]) -> int:
        """Say of owned streams (stream id, epoch, running or held, reason) how they do; returns how many were ours."""
        args: list[bytes | str | int] = []
        for stream_id, epoch, state, reason in states:
            args += [stream_id, epoch, state.value, reason]
        return int(await self._functions.call("mark", [redis_keys.stream_prefix()], args))

    async def progress(self, streams: Sequence[tuple[str, int]]) -> None:
        """Say of owned streams (stream id, epoch) that they came forward: their attempts count anew."""
        args: list[bytes | str | int] = []
        for stream_id, epoch in streams:
            args += [stream_id, epoch]
        await self._functions.call("progress", [redis_keys.stream_prefix()], args)

    async def credits(self, stream_ids: Sequence[str]) -> dict[str, int]:
        """Return how far streams may generate, as their records say."""
        pipeline = self._redis.pipeline(transaction=False)
        for stream_id in stream_ids:
            pipeline.hget(redis_keys.stream_key(stream_id), "credit")
        rows: Reply = await pipeline.execute()
        return {stream_id: int(row) for stream_id, row in zip(stream_ids, rows, strict=True) if row is not None}

    async def suspend(
        self, stream_id: str, *, epoch: int, incarnation: str, deployment: str, credit: int, reason: str
    ) -> GivenBack:
        """Give up an owned stream until its reader comes on; `credit` is what the owner knew."""
        args: list[bytes | str | int] = [stream_id, epoch, credit, reason]
        return await self._give_back("suspend", stream_id, incarnation, deployment, args)

    async def requeue(
        self,
        stream_id: str,
        *,
        epoch: int,
        incarnation: str,
        deployment: str,
        max_attempts: int,
        counts: bool = True,
        elsewhere_seconds: float = 0.0,
    ) -> GivenBack:
        """Give an owned stream back to the head of its queue, to be continued by another owner.

        `counts` is False where the stream had no part in it; else this was one of its attempts. For
        `elsewhere_seconds` this incarnation does not get it.
        """
        args: list[bytes | str | int] = [stream_id, epoch, max_attempts, int(counts)]
        if elsewhere_seconds:
            args += [incarnation, int(elsewhere_seconds * 1000)]
        return await self._give_back("requeue", stream_id, incarnation, deployment, args)

    async def _give_back(
        self, function: str, stream_id: str, incarnation: str, deployment: str, args: list[bytes | str | int]
    ) -> GivenBack:
        keys = [
            redis_keys.stream_key(stream_id),
            redis_keys.assigned_key(incarnation),
            redis_keys.queue_key(deployment),
            redis_keys.bell_key(deployment),
            redis_keys.suspended_key(),
            redis_keys.stream_prefix(),
        ]
        reply: Reply = await self._functions.call(function, keys, args)
        return GivenBack(reply.decode())

    async def settle(
        self,
        stream_id: str,
        *,
        epoch: int,
        incarnation: str,
        state: StreamState,
        log_ttl_seconds: int,
        finish_reason: FinishReason = FinishReason.ERROR,
        usage: Usage = Usage(),  # noqa: B008  # frozen
    ) -> bool:
        """End a stream on its record and book what it used, exactly once; False when it was not ours (any more)."""
        call = settle_call(
            stream_id,
            epoch=epoch,
            incarnation=incarnation,
            state=state,
            log_ttl_seconds=log_ttl_seconds,
            finish_reason=finish_reason,
            usage=usage,
        )
        return bool(await self._functions.call(*call))

    async def settle_or_set_aside(self, call: Call, set_aside: Callable[[], None]) -> None:
        """Make a `settle_call`; where it fails for a reason of its own, see `settlement`, and call `set_aside`."""
        await settle_all(self._functions, [call], set_aside=set_aside)
