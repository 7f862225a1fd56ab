"""Celery tasks around streams. `apps.ops` schedules them."""

from asgiref.sync import async_to_sync, sync_to_async
from celery import shared_task
from django.conf import settings
from msgspec.structs import asdict
from redis.asyncio import Redis

from apps.deployments.selectors import deployment_names
from apps.streams.garbage import Freed, garbage_collect


@shared_task(name="streams.garbage_collect")  # type: ignore[untyped-decorator]  # celery ships no types
def garbage_collect_task() -> dict[str, int]:
    """Sweeps what dead processes left in Redis; returns what was freed, counted by kind."""
    return asdict(async_to_sync(_collect)())


async def _collect() -> Freed:
    async with Redis.from_url(settings.REDIS_URL) as redis:
        return await garbage_collect(redis, deployments=sync_to_async(deployment_names))
