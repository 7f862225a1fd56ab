"""Celery tasks of the ledger. `apps.ops` schedules them."""

from celery import shared_task

from apps.usage.ledger import usage_collect
from apps.usage.notices import notices_collect, notices_send
from apps.usage.services import usage_expire


@shared_task(name="usage.collect")  # type: ignore[untyped-decorator]  # celery ships no types
def usage_collect_task() -> int:
    """Stores what ended streams used."""
    return usage_collect()


@shared_task(name="usage.expire")  # type: ignore[untyped-decorator]  # celery ships no types
def usage_expire_task() -> int:
    """Deletes records that are older than their tenant's retention."""
    return usage_expire()


@shared_task(name="usage.notices_send")  # type: ignore[untyped-decorator]  # celery ships no types
def notices_send_task() -> int:
    """Tells tenants of soft budgets that were passed."""
    notices_collect()
    return notices_send()
