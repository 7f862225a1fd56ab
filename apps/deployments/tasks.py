"""Celery tasks around workers. `apps.ops` schedules them."""

from celery import shared_task

from apps.deployments.fleet_mirror import workers_sync
from apps.deployments.warm_up import workers_warm_up


@shared_task(name="deployments.workers_sync")  # type: ignore[untyped-decorator]
def workers_sync_task() -> int:
    """Mirrors registered workers, and marks those whose lease has ended."""
    return workers_sync()


@shared_task(name="deployments.workers_warm_up")  # type: ignore[untyped-decorator]
def workers_warm_up_task() -> int:
    """Asks idle workers for a dummy inference."""
    return workers_warm_up()
