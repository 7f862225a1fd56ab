"""Celery tasks of caches. `apps.ops` schedules them."""

from celery import shared_task

from apps.caching import prompt_warming


@shared_task(name=prompt_warming.TASK)  # type: ignore[untyped-decorator]  # celery ships no types
def prompt_caches_warm_task() -> int:
    """Asks workers for pinned prompt caches that are not warm there, or may not be any more."""
    return prompt_warming.prompt_caches_warm()
