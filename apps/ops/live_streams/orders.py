"""The operator's end of the wire: orders to streams and processes, and what became of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from django.conf import settings
from redis.asyncio import Redis

from apps.streams.endings import Endings
from headrace_wire import draining, redis_keys
from headrace_wire.cancel_reasons import BY_OPERATOR
from headrace_wire.functions import Functions, Reply
from headrace_wire.ids import new_incarnation
from headrace_wire.messages import StreamState
from headrace_wire.redis_client import connect
from headrace_wire.request_queue import CancelOutcome, RequestQueue
from headrace_wire.token_log import TokenLog

LOOK_SECONDS = 0.1
"""Records change silently, so whoever waits for one looks again and again; for all streams in one round trip."""

LEASE_SECONDS = 60.0
"""Of the operator, who owns what waited in a queue until its end is written; then a gateway does that."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A stream's record, as far as orders go."""

    state: StreamState | None
    """None: there is no such stream."""
    owner: str
    epoch: int

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state is None or self.state.is_terminal


async def kill(streams: Mapping[str, str], *, wait_seconds: float) -> dict[str, Standing]:
    """Ends streams (id to tenant); returns how they stand when all have ended, or the time is over.

    An end that is on a record was acknowledged: it is written after the engine has let the stream go.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    async with _redis() as redis:
        functions = Functions(redis)
        queue, me = RequestQueue(redis, functions), new_incarnation("operator")
        await queue.enlist(me, lease_seconds=LEASE_SECONDS, channels=[])
        endings = Endings(TokenLog(redis, functions), queue, me)
        for stream_id, tenant_id in streams.items():
            outcome, epoch = await queue.cancel(stream_id, tenant_id=tenant_id, reason=BY_OPERATOR, incarnation=me)
            if outcome is CancelOutcome.QUEUED:
                await endings.cancelled(stream_id, epoch=epoch, reason=BY_OPERATOR)
        standings = await _wait(redis, list(streams), lambda _, now: now.has_ended, wait_seconds)
        await redis.zadd(redis_keys.incarnations_key(), {me: 1}, xx=True)  # what was left is a gateway's now
        return standings


async def migrate(owners: Mapping[str, Standing], *, note: str, wait_seconds: float) -> dict[str, Standing]:
    """Has workers give streams to others; returns how they stand when all have other owners, or the time is over.

    Raises:
        headrace_wire.draining.NotThereError: A worker has gone; its streams go elsewhere by themselves.
        redis.exceptions.RedisError: Redis does not answer.
    """

    def has_moved(stream_id: str, now: Standing) -> bool:
        return now.has_ended or (now.epoch > owners[stream_id].epoch and bool(now.owner))

    async with _redis() as redis:
        for stream_id, standing in owners.items():
            await draining.migrate_stream(redis, standing.owner, stream_id, reason=note)
        return await _wait(redis, list(owners), has_moved, wait_seconds)


async def standings_read(stream_ids: Sequence[str]) -> dict[str, Standing]:
    """Returns how streams stand."""
    async with _redis() as redis:
        return await _standings(redis, stream_ids)


async def worker_drain(incarnation: str, *, note: str, deadline_seconds: float, leave: bool) -> None:
    """See `headrace_wire.draining.drain_worker`."""
    async with _redis() as redis:
        await draining.drain_worker(redis, incarnation, reason=note, deadline_seconds=deadline_seconds, leave=leave)


async def worker_resume(incarnation: str) -> None:
    """See `headrace_wire.draining.resume_worker`."""
    async with _redis() as redis:
        await draining.resume_worker(redis, incarnation)


async def gateway_drain(incarnation: str, *, note: str) -> None:
    """See `headrace_wire.draining.drain_gateway`."""
    async with _redis() as redis:
        await draining.drain_gateway(redis, incarnation, reason=note)


@asynccontextmanager
async def _redis() -> AsyncIterator["Redis"]:
    redis = connect(settings.REDIS_URL)
    try:
        yield redis
    finally:
        await redis.aclose()


async def _wait(
    redis: "Redis", stream_ids: Sequence[str], is_done: Callable[[str, Standing], bool], seconds: float
) -> dict[str, Standing]:
    until = time.monotonic() + seconds
    while True:
        standings = await _standings(redis, stream_ids)
        if all(is_done(name, now) for name, now in standings.items()) or time.monotonic() > until:
            return standings
        await asyncio.sleep(LOOK_SECONDS)


async def _standings(redis: "Redis", stream_ids: Sequence[str]) -> dict[str, Standing]:
    pipeline = redis.pipeline(transaction=False)
    for stream_id in stream_ids:
        pipeline.hmget(redis_keys.stream_key(stream_id), ["state", "owner", "epoch"])
    rows: Reply = await pipeline.execute() if stream_ids else []
    return {
        stream_id: Standing(StreamState(state.decode()) if state else None, (owner or b"").decode(), int(epoch or 0))
        for stream_id, (state, owner, epoch) in zip(stream_ids, rows, strict=True)
    }
