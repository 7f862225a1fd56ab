"""Celery tasks around the configuration snapshot. `apps.ops` schedules them."""

from celery import shared_task

from apps.tenants.snapshots import snapshot_ensure


@shared_task(name="tenants.snapshot_ensure")  # type: ignore[untyped-decorator]
def snapshot_ensure_task() -> int | None:
    """Publishes the configuration where Redis lacks it or holds another one than the database."""
    return snapshot_ensure()
