"""Which workers are asked for which prompt caches, and when."""

import time

import pytest
from django.conf import settings
from redis import Redis

from apps.caching.models import PromptCache
from apps.caching.prompt_services import prompt_cache_create
from apps.caching.prompt_warming import LOOK_SECONDS, LOOK_SOON_SECONDS, pinned_caches, prompt_caches_warm
from apps.caching.tasks import prompt_caches_warm_task
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_create
from apps.tenants.models import Tenant
from headrace_wire import codec, redis_keys
from headrace_wire.cache_salt import cache_salt
from headrace_wire.fleet import WorkerState
from headrace_wire.messages import Prefill, PrefillPurpose
from headrace_wire.prefill_reports import PrefillOutcome, PrefillReport
from tests.caching.fleet import register_worker, told
from tests.caching.test_prompt_services import unsaved


@pytest.fixture
def cache(tenant: Tenant, deployment: ModelDeployment, live_redis: Redis) -> PromptCache:
    """A pinned one, and two that nobody has to be asked for; two workers, one of them ready."""
    register_worker(live_redis, "tiny")
    register_worker(live_redis, "tiny", incarnation="worker-2", state=WorkerState.LOADING)
    register_worker(live_redis, "another", incarnation="worker-3")
    prompt_cache_create(cache=unsaved(tenant, deployment, name="opportunistic"))
    prompt_cache_create(cache=unsaved(tenant, deployment, name="off", is_pinned=True, is_active=False))
    return prompt_cache_create(cache=unsaved(tenant, deployment, is_pinned=True))


def report(redis: Redis, cache: PromptCache, *, seconds_ago: float, cached: int) -> None:
    """Say what a worker says when it has computed it."""
    tokens = cache.token_count or 0
    said = PrefillReport(PrefillOutcome.DONE, tokens, cached, tokens - cached, 0.5, time.time() - seconds_ago)
    redis.hset(redis_keys.prefix_warmth_key(cache.pk.hex), "worker-1", codec.encode(said))


def test_ready_workers_of_the_deployment_are_asked(cache: PromptCache, live_redis: Redis) -> None:
    assert prompt_caches_warm_task() == 1
    (prefill,) = told(live_redis, "worker-1")
    assert isinstance(prefill, Prefill)
    assert (prefill.prefill_id, prefill.tenant_id) == (cache.pk.hex, cache.tenant_id.hex)
    assert prefill.purpose is PrefillPurpose.PROMPT_CACHE
    assert prefill.cache_salt == cache_salt(settings.SECRET_KEY.encode(), cache.tenant_id.hex)
    assert len(prefill.prompt_ids) == 4 * (cache.token_count or 0) > 0
    assert told(live_redis, "worker-2") == []
    assert told(live_redis, "worker-3") == []


def test_a_warm_one_is_looked_after_now_and_then(cache: PromptCache, live_redis: Redis) -> None:
    report(live_redis, cache, seconds_ago=LOOK_SOON_SECONDS + 10, cached=cache.token_count or 0)
    assert prompt_caches_warm() == 0
    report(live_redis, cache, seconds_ago=LOOK_SECONDS + 10, cached=cache.token_count or 0)
    assert prompt_caches_warm() == 1


def test_one_that_was_evicted_is_looked_after_sooner(cache: PromptCache, live_redis: Redis) -> None:
    report(live_redis, cache, seconds_ago=LOOK_SOON_SECONDS + 10, cached=32)
    assert prompt_caches_warm() == 1


def test_chosen_ones_are_asked_for_at_once(cache: PromptCache, live_redis: Redis) -> None:
    report(live_redis, cache, seconds_ago=1, cached=cache.token_count or 0)
    assert prompt_caches_warm(caches=[cache]) == 1


def test_those_of_what_loads_first_are_asked_for_first(cache: PromptCache, tenant: Tenant, live_redis: Redis) -> None:
    important = deployment_create(deployment=ModelDeployment(name="another", model="m", preload_priority=1))
    urgent = prompt_cache_create(cache=unsaved(tenant, important, is_pinned=True))
    assert pinned_caches() == [urgent, cache]
    assert prompt_caches_warm() == 2


def test_without_a_worker_nobody_is_asked(tenant: Tenant, deployment: ModelDeployment, live_redis: Redis) -> None:
    cache = prompt_cache_create(cache=unsaved(tenant, deployment, is_pinned=True))
    assert cache.token_count is None
    assert prompt_caches_warm() == 0
    register_worker(live_redis, "tiny")
    assert prompt_caches_warm() == 1
    cache.refresh_from_db()
    assert cache.token_count, "measured as soon as it can be"
