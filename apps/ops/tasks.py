"""Celery tasks of operations."""

from celery import shared_task

from apps.ops.alerts.evaluation import alerts_evaluate, alerts_expire
from apps.ops.alerts.sending import alerts_send
from apps.ops.latency.fleet_rows import fleet_expire, fleet_roll_up
from apps.ops.latency.live import latency_pages_tell
from apps.ops.latency.roll_up import latency_expire, latency_roll_up
from apps.ops.latency.samples import fleet_sample_take


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


@shared_task(name="ops.fleet_sample")  # type: ignore[untyped-decorator]  # celery ships no types
def fleet_sample_task() -> bool:
    """Notes what workers and queues look like, and has open latency pages read what is new."""
    kept = fleet_sample_take()
    latency_pages_tell()
    return kept


@shared_task(name="ops.latency_roll_up")  # type: ignore[untyped-decorator]  # celery ships no types
def latency_roll_up_task() -> int:
    """Stores the latencies and fleet samples of the minutes, hours and days that are over."""
    return latency_roll_up() + fleet_roll_up()


@shared_task(name="ops.latency_expire")  # type: ignore[untyped-decorator]  # celery ships no types
def latency_expire_task() -> int:
    """Deletes latencies and fleet samples that were kept for long enough."""
    return latency_expire() + fleet_expire()
