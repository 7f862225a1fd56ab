"""Celery tasks of operations."""

from celery import shared_task

from apps.ops.alerts.evaluation import alerts_evaluate, alerts_expire
from apps.ops.alerts.sending import alerts_send


@shared_task(name="ops.alerts_evaluate")  # type: ignore[untyped-decorator]  # celery ships no types
def alerts_evaluate_task() -> int:
    """Looks at the alert rules."""
    return alerts_evaluate()


@shared_task(name="ops.alerts_send")  # type: ignore[untyped-decorator]  # celery ships no types
def alerts_send_task() -> int:
    """Tells receivers that an alert fired or is over."""
    return alerts_send()


@shared_task(name="ops.alerts_expire")  # type: ignore[untyped-decorator]  # celery ships no types
def alerts_expire_task() -> int:
    """Deletes alerts that were over long ago."""
    return alerts_expire()
