"""What is known of deployments' workers and queues now, by deployment."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from apps.deployments.autoscale.enums import AutoscaleMode
from apps.deployments.enums import BreakerState, WorkerState
from apps.deployments.fleet_mirror import registrations_read
from apps.deployments.models import AutoscalePolicy, BreakerStanding, Worker
from apps.ops.alerts.enums import FleetFigure
from apps.ops.latency.scopes import FleetPoint, LatencyScope, TimeRange
from apps.ops.latency.selectors import fleet_series

_RECENT = timedelta(minutes=3)
"""Samples are no older; where there is none, nothing is known."""

_LOST_LATELY = timedelta(minutes=10)
"""As `FleetFigure.WORKERS_LOST` says."""

_COUNTED = (
    FleetFigure.WORKERS_READY,
    FleetFigure.WORKERS_BROKEN,
    FleetFigure.WORKERS_QUARANTINED,
    FleetFigure.WORKERS_LOST,
    FleetFigure.ENGINE_FAILURES,
    FleetFigure.BREAKER_OPEN,
)
"""None is a number too: 0."""


def figures_read(deployments: Iterable[str], at: datetime) -> Mapping[str, Mapping[FleetFigure, float]]:
    """Returns what is known of each deployment at `at`, which is now.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    names = list(deployments)
    found: dict[str, dict[FleetFigure, float]] = {name: dict.fromkeys(_COUNTED, 0.0) for name in names}
    alive = Worker.objects.filter(deployment_name__in=names, ended_at__isnull=True)
    for worker in alive.only("deployment_name", "state", "kv_cache_usage", "quarantined_at", "engine_failures"):
        _count(found[worker.deployment_name], worker)
    lost = Worker.objects.filter(deployment_name__in=names, state=WorkerState.LOST, ended_at__gt=at - _LOST_LATELY)
    for name in lost.values_list("deployment_name", flat=True):
        found[name][FleetFigure.WORKERS_LOST] += 1
    open_ones = BreakerStanding.objects.exclude(state=BreakerState.CLOSED).filter(deployment__name__in=names)
    for name in open_ones.values_list("deployment__name", flat=True):
        found[name][FleetFigure.BREAKER_OPEN] = 1.0
    for info in registrations_read().alive.values():
        if info.deployment in found and info.memory_usage:
            fullest = found[info.deployment].get(FleetFigure.MEMORY_USAGE, 0.0)
            found[info.deployment][FleetFigure.MEMORY_USAGE] = max(fullest, info.memory_usage)
    for name in names:
        point = _newest(name, at)
        if point is not None:
            found[name][FleetFigure.WAITING] = point.waiting
    for name in _resting(names):
        if not found[name].get(FleetFigure.WAITING) and not found[name][FleetFigure.WORKERS_READY]:
            del found[name][FleetFigure.WORKERS_READY]
    return found


def _count(figures: dict[FleetFigure, float], worker: Worker) -> None:
    # One that sleeps wakes up for whoever asks.
    figures[FleetFigure.WORKERS_READY] += worker.state in (WorkerState.READY, WorkerState.SLEEPING)
    figures[FleetFigure.WORKERS_BROKEN] += worker.state == WorkerState.BROKEN
    figures[FleetFigure.WORKERS_QUARANTINED] += worker.quarantined_at is not None
    figures[FleetFigure.ENGINE_FAILURES] += worker.engine_failures
    fullest = figures.get(FleetFigure.KV_CACHE_USAGE, 0.0)
    figures[FleetFigure.KV_CACHE_USAGE] = max(fullest, worker.kv_cache_usage)


def _resting(names: Iterable[str]) -> list[str]:
    """Returns those that may have no worker while nothing waits: the autoscaler starts one then."""
    policies = AutoscalePolicy.objects.filter(deployment__name__in=names, min_workers=0, mode=AutoscaleMode.ON)
    return list(policies.values_list("deployment__name", flat=True))


def _newest(deployment: str, at: datetime) -> FleetPoint | None:
    points = fleet_series(LatencyScope(deployment=deployment), TimeRange.of(at - _RECENT, at, now=at))
    return points[-1] if points else None
