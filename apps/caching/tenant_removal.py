"""A tenant that is deleted takes along what was kept and computed for it."""

import structlog
from asgiref.sync import async_to_sync
from django.conf import settings
from redis.exceptions import RedisError

from apps.caching.models import PromptCache
from apps.caching.prompt_warming import warmth_forget
from apps.caching.response_services import answers_forget
from apps.tenants.live_state import redis_client
from apps.tenants.models import Tenant
from apps.tenants.removal import Drop
from headrace_wire import redis_keys
from headrace_wire.functions import Functions, Reply
from headrace_wire.messages import CancelPrefill
from headrace_wire.redis_client import connect
from headrace_wire.request_queue import RequestQueue

logger = structlog.get_logger(__name__)


def caches_drop_prepare(tenant: Tenant) -> Drop:
    """Returns what drops a tenant's kept answers, prompt caches and drafts, once its rows are gone."""
    tenant_id = tenant.pk.hex
    caches = [key.hex for key in PromptCache.objects.for_tenant(tenant).values_list("pk", flat=True)]
    return lambda: caches_drop(tenant_id=tenant_id, prompt_caches=caches)


def caches_drop(*, tenant_id: str, prompt_caches: list[str]) -> None:
    """Drops them. Without Redis they end by themselves, answers within the hour; nobody can ask for them till then."""
    for cache_id in prompt_caches:
        warmth_forget(cache_id=cache_id, with_use=True)
    try:
        answers = answers_forget(tenant_id=tenant_id)
        redis_client().delete(redis_keys.kept_answers_sizes_key(tenant_id))
        drafts = _drafts_drop(tenant_id)
        _withdraw([*prompt_caches, *drafts])
    except RedisError as error:
        logger.warning("caches_not_dropped", tenant_id=tenant_id, error=str(error))
    else:
        logger.info("caches_dropped", tenant_id=tenant_id, answers=answers, drafts=len(drafts))


def _drafts_drop(tenant_id: str) -> list[str]:
    """Forgets what drafts have cost; returns those that are being computed."""
    rows: Reply = redis_client().zrange(redis_keys.drafts_key(tenant_id), 0, -1)
    redis_client().delete(
        redis_keys.drafts_key(tenant_id),
        redis_keys.draft_bucket_key(tenant_id),
        redis_keys.open_drafts_key(tenant_id),
        redis_keys.open_drafts_ending_key(tenant_id),
    )
    return [row.decode() for row in rows]


@async_to_sync
async def _withdraw(prefills: list[str]) -> None:
    """Has every worker drop prefills that wait, or run, there; unknown ones are fine."""
    redis = connect(settings.REDIS_URL)
    try:
        workers: Reply = await redis.hkeys(redis_keys.workers_key())
        told = [(f"@{name.decode()}", CancelPrefill(prefill_id)) for name in workers for prefill_id in prefills]
        if told:
            await RequestQueue(redis, Functions(redis)).tell(told)
    finally:
        await redis.aclose()
