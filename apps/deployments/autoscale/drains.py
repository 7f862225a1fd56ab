"""Orders to the workers that are to end: take nothing more, or go on after all."""

from collections.abc import Sequence
from contextlib import suppress

from asgiref.sync import async_to_sync
from django.conf import settings

from apps.deployments.autoscale.executors.protocol import Victim
from headrace_wire.draining import NotThereError, drain_worker, resume_worker
from headrace_wire.redis_client import connect


@async_to_sync
async def victims_drain(victims: Sequence[Victim], *, reason: str, deadline_seconds: float) -> None:
    """Tells workers to drain; those that are gone have done so.

    They stay until the executor ends them, so that nobody starts another one in their place.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    redis = connect(settings.REDIS_URL)
    try:
        for victim in victims:
            with suppress(NotThereError):
                await drain_worker(redis, victim.incarnation, reason=reason, deadline_seconds=deadline_seconds)
    finally:
        await redis.aclose()


@async_to_sync
async def victims_resume(victims: Sequence[Victim]) -> None:
    """Tells workers to take streams again.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    redis = connect(settings.REDIS_URL)
    try:
        for victim in victims:
            with suppress(NotThereError):
                await resume_worker(redis, victim.incarnation)
    finally:
        await redis.aclose()
