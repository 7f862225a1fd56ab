"""Celery tasks of guardrails. `apps.ops` schedules them."""

from celery import shared_task

from apps.guardrails.intervention_collector import interventions_collect
from apps.guardrails.intervention_records import interventions_expire


@shared_task(name="guardrails.interventions_collect")  # type: ignore[untyped-decorator]  # celery ships no types
def interventions_collect_task() -> int:
    """Stores what guardrails did."""
    return interventions_collect()


@shared_task(name="guardrails.interventions_expire")  # type: ignore[untyped-decorator]  # celery ships no types
def interventions_expire_task() -> int:
    """Deletes interventions that are old."""
    return interventions_expire()
