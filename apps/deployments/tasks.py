"""Celery tasks around workers. `apps.ops` schedules them."""

from celery import shared_task

from apps.deployments.autoscale.tick import autoscale_clean, autoscale_tick, autoscale_wake
from apps.deployments.breaker_mirror import breakers_sync
from apps.deployments.fleet_mirror import workers_sync
from apps.deployments.restarts.services import restarts_advance
from apps.deployments.warm_up import workers_warm_up


@shared_task(name="deployments.workers_sync")  # type: ignore[untyped-decorator]
def workers_sync_task() -> int:
    """Mirrors registered workers, marks those whose lease has ended, and mirrors circuit breakers."""
    return workers_sync() + breakers_sync()


@shared_task(name="deployments.workers_warm_up")  # type: ignore[untyped-decorator]
def workers_warm_up_task() -> int:
    """Asks idle workers for a dummy inference."""
    return workers_warm_up()


@shared_task(name="deployments.restarts_advance")  # type: ignore[untyped-decorator]
def restarts_advance_task() -> int:
    """Brings workers to changed options, one after another."""
    return restarts_advance()


@shared_task(name="deployments.autoscale_tick")  # type: ignore[untyped-decorator]
def autoscale_tick_task() -> int:
    """Measures deployments that have a policy, decides, and carries out."""
    return autoscale_tick()


@shared_task(name="deployments.autoscale_wake")  # type: ignore[untyped-decorator]
def autoscale_wake_task() -> int:
    """Starts a worker where requests wait and none runs."""
    return autoscale_wake()


@shared_task(name="deployments.autoscale_clean")  # type: ignore[untyped-decorator]
def autoscale_clean_task() -> int:
    """Deletes old samples and decisions."""
    return autoscale_clean()
