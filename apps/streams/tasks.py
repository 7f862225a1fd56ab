"""Celery tasks around streams. `apps.ops` schedules them."""

from pathlib import Path

from asgiref.sync import async_to_sync, sync_to_async
from celery import shared_task
from django.conf import settings
from msgspec.structs import asdict
from redis.asyncio import Redis

from apps.deployments.selectors import deployment_names
from apps.streams.checkpoint_garbage import CheckpointsFreed, checkpoint_garbage_collect
from apps.streams.garbage import Freed, garbage_collect
from apps.tenants.selectors import tenant_ids
from headrace_wire.functions import Functions
from headrace_wire.request_queue import RequestQueue


@shared_task(name="streams.garbage_collect")  # type: ignore[untyped-decorator]  # celery ships no types
def garbage_collect_task() -> dict[str, int]:
    """Sweeps what dead processes left in Redis and on disk; returns what was freed, counted by kind."""
    freed, checkpoints = async_to_sync(_collect)()
    return {**asdict(freed), **asdict(checkpoints)}


async def _collect() -> tuple[Freed, CheckpointsFreed]:
    directory: Path | None = settings.HEADRACE_CHECKPOINT_DIR
    async with Redis.from_url(settings.REDIS_URL) as redis:
        freed = await garbage_collect(redis, deployments=sync_to_async(deployment_names))
        if directory is None:
            return freed, CheckpointsFreed()
        queue = RequestQueue(redis, Functions(redis))
        return freed, await checkpoint_garbage_collect(directory, queue, tenants=sync_to_async(tenant_ids))
