"""One sample of a deployment, from what Redis holds now: registrations, queue, pace, and the last latencies."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from apps.deployments.autoscale.terms import Sample
from apps.deployments.models import ModelDeployment, ScalingSample
from apps.tenants.live_state import redis_client
from headrace_wire import redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.latency.measures import Measure
from headrace_wire.latency.store import window

TICKS_MEASURED = 4
"""Rates and percentiles are of so many ticks: a minute."""
_PACE_SAMPLES = 5
"""Claims while somebody waited, before a capacity is taken from them."""
_ASKED_SECONDS = 60.0
"""A request that a circuit breaker has turned away for want of workers stands for one that waits, for so long."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A sample, and what the next one needs."""

    sample: Sample
    claims: int | None


def measure(
    deployment: ModelDeployment,
    at: datetime,
    workers: Sequence[WorkerInfo],
    before: Sequence[ScalingSample],
    *,
    tick_seconds: float,
) -> Measured:
    """Returns what is so for a deployment; `before` are its last samples, in order.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    client, name = redis_client(), deployment.name
    pipeline = client.pipeline(transaction=False)
    pipeline.scard(redis_keys.waiting_key(name))
    pipeline.scard(redis_keys.parked_here_key(name))
    pipeline.hmget(redis_keys.pace_key(name), "number", "place")
    pipeline.hget(redis_keys.breaker_key(deployment.pk.hex), "asked")
    reply: Reply = pipeline.execute()
    waiting_all, parked, (number, place), asked = reply
    latencies = window(client, deployment=name, seconds=TICKS_MEASURED * tick_seconds)
    ready = [one for one in workers if one.state is WorkerState.READY]
    places = sum(one.max_num_seqs for one in ready)
    waiting = max(0, int(waiting_all) - int(parked))
    if not workers and asked is not None and int(asked) / 1000 > at.timestamp() - _ASKED_SECONDS:
        waiting = max(1, waiting)
    claims = int(number) if number else None
    served = _place_seconds(place)

    def p95(measured: Measure) -> float | None:
        found = latencies.histograms.get(measured)
        return found.quantile(0.95) if found is not None else None

    sample = Sample(
        at=at,
        workers=sum(one.state not in (WorkerState.DRAINING, WorkerState.SLEEPING) for one in workers),
        sleeping=sum(one.state is WorkerState.SLEEPING for one in workers),
        ready=len(ready),
        running=sum(one.num_requests_running + one.num_requests_waiting + one.num_requests_held for one in ready),
        waiting=waiting,
        places=places,
        requests_per_second=_rate(claims, waiting, at, before[-TICKS_MEASURED:]),
        worker_capacity=places / len(ready) / served if ready and served else None,
        queue_p95=p95(Measure.QUEUE),
        ttft_p95=p95(Measure.TTFT),
        kv_usage=sum(one.kv_cache_usage for one in ready) / len(ready) if ready else None,
    )
    return Measured(sample, claims)


def _rate(claims: int | None, waiting: int, at: datetime, before: Sequence[ScalingSample]) -> float | None:
    """Requests that came a second: those that were claimed since, and by how many more wait."""
    first = before[0] if before else None
    if first is None or (seconds := (at - first.at).total_seconds()) <= 0:
        return None
    came = (claims or 0) - (first.claims or 0)
    if came < 0:  # the count is gone after a day of rest
        return None
    return max(0.0, (came + waiting - first.waiting) / seconds)


def _place_seconds(packed: bytes | None) -> float | None:
    """How long a place serves a stream, as `lua/_waiting.lua` measures it while somebody waits."""
    if packed is None:
        return None
    mean_ms, count = msgspec.msgpack.decode(packed, type=tuple[float, float])
    return mean_ms / 1000 if count >= _PACE_SAMPLES and mean_ms > 0 else None
