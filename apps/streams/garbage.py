"""What processes that died left in Redis and nothing else takes away. Celery sweeps it every few minutes.

Almost everything there has a TTL, or an owner whose lease the gateways watch. What can be left over:

* a table of assigned streams whose owner is on no list of leases (a frozen gateway that woke and died): the owner is
  listed again, as expired, and the gateways' reaper brings its streams on as it does for any other;
* queues of deployments that were deleted: their streams end with an explicit error;
* bells of deleted deployments, channels of dead processes without a TTL: deleted;
* any other key of a stream without a TTL: gets the longest that a stream may live.

Every step is one command or one that its owner's lease covers, and looks at what is there, not at what an earlier step
did: a sweep that dies in the middle is continued by the next one. Registrations of dead workers are swept by
`apps.deployments.fleet_mirror`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection

import structlog
from msgspec import Struct
from msgspec.structs import asdict
from redis.asyncio import Redis

from apps.streams.endings import Endings
from apps.streams.metrics import GARBAGE_FREED, GARBAGE_FREED_BYTES
from headrace_wire import redis_keys
from headrace_wire.errors import ModelNotFoundError
from headrace_wire.functions import Functions, Reply
from headrace_wire.ids import new_incarnation
from headrace_wire.request_queue import CancelOutcome, RequestQueue
from headrace_wire.token_log import STREAM_MAX_SECONDS, TokenLog

log = structlog.get_logger(__name__)

SCAN_COUNT = 1000
LEASE_SECONDS = 120.0
"""Of the sweep, as the owner of streams that it ends; the gateways bring them on where it dies."""


class Freed(Struct):
    """What a sweep found, counted."""

    owners_expired: int = 0
    """Owners without a lease whose streams go back to the gateways."""
    streams_ended: int = 0
    """Streams that waited for a deleted deployment."""
    queues: int = 0
    """Queues and bells of deleted deployments."""
    channels: int = 0
    """Control channels and delivery streams of dead processes."""
    keys_limited: int = 0
    """Keys of streams that had no TTL and have one now."""
    bytes: int = 0
    """Memory of what was deleted."""

    @property
    def counts(self) -> dict[str, int]:
        """Everything but the bytes."""
        return {name: count for name, count in asdict(self).items() if name != "bytes"}


async def garbage_collect(redis: "Redis", *, deployments: Callable[[], Awaitable[Collection[str]]]) -> Freed:
    """Frees what nobody will. `deployments` reads the names of all that exist; it is called once queues were seen.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; what was freed until then stays freed.
    """
    sweep = _Sweep(redis)
    try:
        async for keys in _pages(redis):
            await sweep.look_at(keys)
        for deployment in sweep.queued_for.difference(await deployments()):
            await sweep.end_deployment(deployment)
    finally:
        for kind, count in sweep.freed.counts.items():
            GARBAGE_FREED.labels(kind).inc(count)
        GARBAGE_FREED_BYTES.inc(sweep.freed.bytes)
    await sweep.finish()
    log.info("garbage_freed", **asdict(sweep.freed))
    return sweep.freed


async def _pages(redis: "Redis") -> AsyncIterator[list[str]]:
    """Yields Headrace's keys, a page at a time; one may come twice."""
    cursor = 0
    while True:
        reply: Reply = await redis.scan(cursor, match="{hr*", count=SCAN_COUNT)
        cursor, keys = int(reply[0]), [key.decode() for key in reply[1]]
        if keys:
            yield keys
        if cursor == 0:
            return


class _Sweep:
    def __init__(self, redis: "Redis") -> None:
        self.freed = Freed()
        self.queued_for: set[str] = set()
        """Deployments that have a queue or a bell."""
        self._redis = redis
        functions = Functions(redis)
        self._queue = RequestQueue(redis, functions)
        self._log = TokenLog(redis, functions)
        self._incarnation = ""

    async def look_at(self, keys: list[str]) -> None:
        for key in keys:
            if owner := _after(key, redis_keys.assigned_prefix()):
                await self._expire_owner(owner)
            elif deployment := _after(key, redis_keys.waiting_prefix()) or _after(key, redis_keys.bell_prefix()):
                self.queued_for.add(deployment)
        await self._look_at_ttls([key for key in keys if key.startswith(_LIMITED)])

    async def end_deployment(self, deployment: str) -> None:
        """Ends what waits for a deployment that does not exist any more."""
        everywhere = redis_keys.waiting_key(deployment)
        waiting: Reply = await self._redis.smembers(everywhere)
        for raw in waiting:
            await self._end(raw.decode())
            await self._redis.srem(everywhere, raw)  # where there was no record of it
        self.freed.queues += bool(waiting) + await self._delete(redis_keys.bell_key(deployment))

    async def finish(self) -> None:
        """Gives the lease back, if there was something to end."""
        if self._incarnation:
            await self._redis.zadd(redis_keys.incarnations_key(), {self._incarnation: 1}, xx=True)

    async def _expire_owner(self, owner: str) -> None:
        # NX: one that holds a lease, or waits for the reaper, is left alone. No name is ever enlisted a second time.
        listed: Reply = await self._redis.zadd(redis_keys.incarnations_key(), {owner: 1}, nx=True)
        self.freed.owners_expired += int(listed)

    async def _end(self, stream_id: str) -> None:
        if not self._incarnation:
            self._incarnation = new_incarnation("sweep")
            await self._queue.enlist(self._incarnation, lease_seconds=LEASE_SECONDS, channels=[])
        record = await self._queue.record(stream_id)
        if record is None:
            return
        outcome, epoch = await self._queue.cancel(
            stream_id, tenant_id=record.tenant_id, reason="deployment_deleted", incarnation=self._incarnation
        )
        if outcome is CancelOutcome.QUEUED:
            error = ModelNotFoundError(f"The model `{record.deployment}` was deleted before it took the request.")
            await Endings(self._log, self._queue, self._incarnation).failed(stream_id, epoch=epoch, error=error)
            self.freed.streams_ended += 1

    async def _look_at_ttls(self, keys: list[str]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.pttl(key)
        ttls: Reply = await pipeline.execute()
        for key, ttl in zip(keys, ttls, strict=True):
            if ttl != -1:
                continue
            owner = _after(key, redis_keys.control_prefix()) or _after(key, redis_keys.delivery_prefix())
            if not owner:
                limited: Reply = await self._redis.expire(key, STREAM_MAX_SECONDS, nx=True)
                self.freed.keys_limited += int(limited)
            elif await self._redis.zscore(redis_keys.incarnations_key(), owner) is None:
                self.freed.channels += await self._delete(key)

    async def _delete(self, key: str) -> int:
        size: Reply = await self._redis.memory_usage(key)
        deleted: Reply = await self._redis.unlink(key)
        self.freed.bytes += int(size or 0) * int(deleted)
        return int(deleted)


_LIMITED = (
    redis_keys.control_prefix(),
    redis_keys.delivery_prefix(),
    redis_keys.stream_prefix(),
    redis_keys.log_prefix(),
    redis_keys.token_ids_prefix(),
    redis_keys.readers_prefix(),
)
"""Start of keys that never stay without a TTL."""


def _after(key: str, prefix: str) -> str:
    return key.removeprefix(prefix) if key.startswith(prefix) else ""
