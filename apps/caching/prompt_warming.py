"""Keeps pinned prompt caches warm: has workers compute them where they are not, and look whether they still are.

A worker computes them by itself before it is ready. This here is for what is saved later, and for what was evicted.
"""

import time
from collections.abc import Sequence

import msgspec
import structlog
from asgiref.sync import async_to_sync
from celery import current_app
from django.conf import settings
from django.core.exceptions import ValidationError
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from apps.caching.models import PromptCache
from apps.caching.prompt_measuring import memory_read, prefix_ids, workers_read
from apps.tenants.live_state import redis_client
from apps.tenants.snapshots import snapshot_publish_on_commit
from headrace_wire import codec, redis_keys
from headrace_wire.cache_salt import cache_salt
from headrace_wire.codec import pack_token_ids
from headrace_wire.fleet import WorkerState
from headrace_wire.functions import Functions, Reply
from headrace_wire.messages import Prefill, PrefillPurpose
from headrace_wire.prefill_reports import PrefillReport
from headrace_wire.redis_client import connect
from headrace_wire.request_queue import RequestQueue

logger = structlog.get_logger(__name__)

TASK = "caching.prompt_caches_warm"
LOOK_SECONDS = 300.0
"""A worker that had a prefix whole is asked again after so long: that keeps it among what was used lately."""
LOOK_SOON_SECONDS = 50.0
"""After so long, where much of it was gone: somebody else needs the memory."""
EXPIRES_SECONDS = 60.0


def prompt_caches_warm(*, caches: Sequence[PromptCache] | None = None) -> int:
    """Asks workers for pinned prompt caches that are due there; of `caches`, whether due or not. Returns for how many.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    chosen = pinned_caches() if caches is None else list(caches)
    prefills = [one for cache in chosen for one in _prefills(cache, is_forced=caches is not None)]
    return _tell(prefills) if prefills else 0


def pinned_caches() -> list[PromptCache]:
    """Returns what is to be warm, that of deployments that load first in front."""
    rows = PromptCache.all_tenants.filter(is_pinned=True, is_active=True).select_related("deployment")
    return list(rows.order_by("deployment__preload_priority", "pk"))


def prompt_caches_warm_soon() -> None:
    """Has Celery do so. Where its broker does not answer, the next round does."""
    try:
        current_app.send_task(TASK, expires=EXPIRES_SECONDS, retry=False)
    except OperationalError as error:
        logger.warning("prompt_caches_not_warmed", error=str(error))


def warmth_read(*, cache_id: str) -> dict[str, PrefillReport]:
    """Returns the last report of each worker, by incarnation; also of workers that have ended within a day.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    rows: Reply = redis_client().hgetall(redis_keys.prefix_warmth_key(cache_id))
    reports = {}
    for name, raw in rows.items():
        try:
            reports[name.decode()] = codec.decode(raw, PrefillReport)
        except msgspec.DecodeError as error:
            logger.warning("report_unreadable", cache=cache_id, error=str(error))
    return reports


def warmth_forget(*, cache_id: str, with_use: bool) -> None:
    """Drops what is known of where it is warm, and what it was good for."""
    keys = [redis_keys.prefix_warmth_key(cache_id)]
    if with_use:
        keys.append(redis_keys.prompt_cache_use_key(cache_id))
    try:
        redis_client().delete(*keys)
    except RedisError as error:
        logger.warning("warmth_not_forgotten", cache=cache_id, error=str(error))


def _prefills(cache: PromptCache, *, is_forced: bool) -> list[tuple[str, Prefill]]:
    """Returns the messages for the workers that are to compute it, and notes its length where that is news."""
    memory = memory_read(deployment=cache.deployment.name)
    if memory is None:
        return []
    try:
        ids = prefix_ids(cache, memory)
    except ValidationError as error:
        logger.warning("prompt_cache_refused", cache=cache.pk.hex, error=str(error))
        return []
    if cache.token_count != len(ids):
        PromptCache.all_tenants.filter(pk=cache.pk).update(token_count=len(ids))
        snapshot_publish_on_commit()
    workers = workers_read(deployment=cache.deployment.name)
    ready = [name for name, info in workers.items() if info.state is WorkerState.READY]
    reports = warmth_read(cache_id=cache.pk.hex)
    due = [name for name in ready if is_forced or _is_due(reports.get(name))]
    if not ids or not due:
        return []
    prefill = Prefill(
        cache.pk.hex,
        cache.tenant_id.hex,
        cache_salt(settings.SECRET_KEY.encode(), cache.tenant_id.hex),
        pack_token_ids(ids),
        int((time.time() + EXPIRES_SECONDS) * 1000),
        PrefillPurpose.PROMPT_CACHE,
    )
    return [(f"@{name}", prefill) for name in due]


def _is_due(report: PrefillReport | None) -> bool:
    if report is None:
        return True
    was_there = report.cached_tokens * 2 >= report.tokens
    return time.time() - report.at >= (LOOK_SECONDS if was_there else LOOK_SOON_SECONDS)


@async_to_sync
async def _tell(prefills: Sequence[tuple[str, Prefill]]) -> int:
    redis = connect(settings.REDIS_URL)
    try:
        return await RequestQueue(redis, Functions(redis)).tell(prefills)
    finally:
        await redis.aclose()
