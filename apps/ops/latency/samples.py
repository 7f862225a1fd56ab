"""What the fleet looks like, taken every ten seconds from registrations and queues, and kept in Redis for two hours."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from django.utils import timezone
from msgspec import Struct

from apps.deployments.fleet_mirror import registrations_read
from apps.deployments.selectors import deployment_names
from apps.tenants.live_state import redis_client
from headrace_wire import redis_keys
from headrace_wire.fleet import GpuReading, WorkerInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.latency.store import KEPT_SECONDS, SLOT_SECONDS, slot_of

MOST_SUSPENDED = 2_000
"""Streams that are looked up for their deployments; of more, the newest are not counted."""


class WorkerSample(Struct, frozen=True, array_like=True):
    """One worker. Tokens are what it has counted since it started."""

    worker: str
    deployment: str
    is_ready: bool
    running: int
    held: int
    spilled: int
    kv_cache_usage: float
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    rss_bytes: int
    gpu: GpuReading | None
    batches: tuple[int, int, int] = (0, 0, 0)
    """Its limit of streams, and what both rules of the dynamic batch say; 0 for what is not known."""
    preemptions: int | None = None
    """Counted since it started, as tokens are."""
    memory_usage: float = 0.0
    """Of its machine or control group, 0 to 1; 0 for what is not known."""


class QueueSample(Struct, frozen=True, array_like=True):
    """The streams of a deployment that no worker has."""

    deployment: str
    waiting: int
    suspended: int


class FleetState(Struct, frozen=True, array_like=True):
    """All workers and queues at one time."""

    at: float
    """Unix seconds."""
    workers: list[WorkerSample]
    queues: list[QueueSample]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FleetState)


def fleet_sample_take(*, now: datetime | None = None) -> bool:
    """Keeps a sample of this slot, unless there is one; returns whether it was kept.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    at = (now or timezone.now()).timestamp()
    workers = [_worker_sample(info) for info in registrations_read().alive.values()]
    names = sorted(deployment_names() | {worker.deployment for worker in workers})
    state = FleetState(at, workers, _queue_samples(names))
    key, body = redis_keys.fleet_sample_key(slot_of(at)), _encoder.encode(state)
    return bool(redis_client().set(key, body, nx=True, ex=KEPT_SECONDS))


def fleet_states(start: datetime, end: datetime, *, every: int = 1) -> Iterator[FleetState]:
    """Yields the samples from `start` up to and without `end`, oldest first; of so many slots one.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    slots = range(slot_of(start.timestamp()), int(end.timestamp()), SLOT_SECONDS * every)
    if slots:
        found: Reply = redis_client().mget([redis_keys.fleet_sample_key(slot) for slot in slots])
        for body in found:
            if body is not None:
                yield _decoder.decode(body)


def sampled_at(state: FleetState) -> datetime:
    """Returns when a sample was taken."""
    return datetime.fromtimestamp(state.at, UTC)


def _worker_sample(info: WorkerInfo) -> WorkerSample:
    return WorkerSample(
        worker=info.incarnation,
        deployment=info.deployment,
        is_ready=info.state is WorkerState.READY,
        running=info.num_requests_running,
        held=info.num_requests_held,
        spilled=info.num_requests_spilled,
        kv_cache_usage=info.kv_cache_usage,
        tokens=info.tokens_generated,
        prompt_tokens=info.prompt_tokens,
        cached_tokens=info.cached_tokens,
        rss_bytes=info.rss_bytes,
        gpu=info.gpu,
        batches=(info.batch.limit, info.batch.classic, info.batch.objectives) if info.batch else (0, 0, 0),
        preemptions=info.preemptions,
        memory_usage=info.memory_usage,
    )


def _queue_samples(names: list[str]) -> list[QueueSample]:
    pipeline = redis_client().pipeline(transaction=False)
    pipeline.zrange(redis_keys.suspended_key(), 0, MOST_SUSPENDED - 1)
    for name in names:
        pipeline.scard(redis_keys.waiting_key(name))
    reply: Reply = pipeline.execute()
    suspended_ids, *waiting = reply
    suspended = _deployments_of([stream_id.decode() for stream_id in suspended_ids])
    return [QueueSample(name, count, suspended.get(name, 0)) for name, count in zip(names, waiting, strict=True)]


def _deployments_of(stream_ids: list[str]) -> dict[str, int]:
    """Returns how many of these streams each deployment has."""
    if not stream_ids:
        return {}
    pipeline = redis_client().pipeline(transaction=False)
    for stream_id in stream_ids:
        pipeline.hget(redis_keys.stream_key(stream_id), "deployment")
    found: Reply = pipeline.execute()
    counts: dict[str, int] = {}
    for name in found:
        if name is not None:
            counts[name.decode()] = counts.get(name.decode(), 0) + 1
    return counts
