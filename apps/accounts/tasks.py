"""Celery tasks around accounts. `apps.ops` schedules them."""

from celery import shared_task

from apps.accounts.key_usage import api_keys_mark_used


@shared_task(name="accounts.api_keys_mark_used")  # type: ignore[untyped-decorator]
def api_keys_mark_used_task() -> int:
    """Writes the times of last use to the keys."""
    return api_keys_mark_used()
