"""What is known of deployments' workers and queues now, by deployment."""

from collections.abc import Iterable, Mapping
from datetime import timedelta

from django.utils import timezone

from apps.deployments.enums import WorkerState
from apps.deployments.models import Worker
from apps.ops.alerts.enums import FleetFigure
from apps.ops.latency.scopes import FleetPoint, LatencyScope, TimeRange
from apps.ops.latency.selectors import fleet_series

_RECENT = timedelta(minutes=3)
"""Samples are no older; where there is none, nothing is known."""


def figures_read(deployments: Iterable[str]) -> Mapping[str, Mapping[FleetFigure, float]]:
    """Returns what is known of each deployment.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    names = list(deployments)
    found: dict[str, dict[FleetFigure, float]] = {
        name: {FleetFigure.WORKERS_READY: 0.0, FleetFigure.WORKERS_BROKEN: 0.0} for name in names
    }
    workers = Worker.objects.filter(deployment_name__in=names, ended_at__isnull=True)
    for name, state, kv_cache_usage in workers.values_list("deployment_name", "state", "kv_cache_usage"):
        figures = found[name]
        figures[FleetFigure.WORKERS_READY] += state == WorkerState.READY
        figures[FleetFigure.WORKERS_BROKEN] += state == WorkerState.BROKEN
        fullest = figures.get(FleetFigure.KV_CACHE_USAGE, 0.0)
        figures[FleetFigure.KV_CACHE_USAGE] = max(fullest, kv_cache_usage)
    for name in names:
        point = _newest(name)
        if point is not None:
            found[name][FleetFigure.WAITING] = point.waiting
    return found


def _newest(deployment: str) -> FleetPoint | None:
    now = timezone.now()
    points = fleet_series(LatencyScope(deployment=deployment), TimeRange.of(now - _RECENT, now))
    return points[-1] if points else None
