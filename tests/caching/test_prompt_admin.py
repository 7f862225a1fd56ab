"""The pages of prompt caches."""

import time
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries
from redis import Redis

from apps.caching.models import PromptCache
from apps.caching.prompt_services import prompt_cache_create
from apps.deployments.models import ModelDeployment
from apps.tenants.models import Tenant
from headrace_wire import codec, redis_keys
from headrace_wire.prefill_reports import PrefillOutcome, PrefillReport
from tests.caching.fleet import register_worker, told
from tests.caching.test_prompt_services import unsaved

LIST = reverse("admin:caching_promptcache_changelist")
ADD = reverse("admin:caching_promptcache_add")


def form(tenant: Tenant, deployment: ModelDeployment, **changes: str) -> dict[str, str]:
    return {
        "tenant": str(tenant.pk),
        "deployment": str(deployment.pk),
        "name": "tides",
        "system_prompt": "You know the tides. " * 50,
        "examples": "[]",
        "is_active": "on",
        **changes,
    }


def test_one_is_made_changed_and_deleted(admin_client: Client, tenant: Tenant, deployment: ModelDeployment) -> None:
    assert admin_client.post(ADD, form(tenant, deployment)).status_code == 302
    cache = PromptCache.objects.for_tenant(tenant).get()
    page = reverse("admin:caching_promptcache_change", args=[cache.pk])
    assert (
        admin_client.post(page, form(tenant, deployment, system_prompt="Another.", is_pinned="on")).status_code == 302
    )
    cache.refresh_from_db()
    assert (cache.system_prompt, cache.version, cache.is_pinned) == ("Another.", 2, True)
    chosen = {"action": "delete_selected", "_selected_action": [str(cache.pk)], "post": "yes"}
    assert admin_client.post(LIST, chosen).status_code == 302
    assert not PromptCache.objects.for_tenant(tenant).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system_prompt": ""}, "Write a system prompt"),
        ({"examples": "{"}, "Enter a valid JSON"),
        ({"examples": '[{"role": "user"}]'}, "Message 1 needs a role"),
        ({"is_pinned": "on"}, "may be pinned"),
    ],
)
def test_problems_are_shown_in_the_form(
    admin_client: Client,
    tenant: Tenant,
    deployment: ModelDeployment,
    live_redis: Redis,
    changes: dict[str, Any],
    message: str,
) -> None:
    register_worker(live_redis, "tiny", cache_tokens=512)
    answer = admin_client.post(ADD, form(tenant, deployment, **changes))
    assert answer.status_code == 200
    assert message in str(answer.context["adminform"].form.errors)
    assert not PromptCache.all_tenants.exists()


def test_pages_say_what_it_is_good_for(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment, live_redis: Redis
) -> None:
    register_worker(live_redis, "tiny")
    register_worker(live_redis, "tiny", incarnation="worker-2")
    cache = prompt_cache_create(cache=unsaved(tenant, deployment, is_pinned=True))
    use = {"requests": 40, "hits": 30, "tokens": 12_345, "microseconds": 6_700_000}
    for name, count in use.items():
        live_redis.hset(redis_keys.prompt_cache_use_key(cache.pk.hex), name, str(count))
    report = PrefillReport(PrefillOutcome.DONE, 992, 960, 32, 0.25, time.time() - 7200)
    live_redis.hset(redis_keys.prefix_warmth_key(cache.pk.hex), "worker-1", codec.encode(report))
    listed = admin_client.get(LIST).content.decode()
    assert "75% / 40" in listed
    assert "12,345 tokens, 6.7 s" in listed
    page = admin_client.get(reverse("admin:caching_promptcache_change", args=[cache.pk])).content.decode()
    assert "30 of 40 requests found it computed: 12,345 tokens, 6.7 s saved." in page
    assert "960 of 992" in page
    assert "Not computed there yet." in page


def test_actions_warm_and_purge(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment, live_redis: Redis
) -> None:
    register_worker(live_redis, "tiny")
    cache = prompt_cache_create(cache=unsaved(tenant, deployment, is_pinned=True))
    chosen = {"_selected_action": [str(cache.pk)]}
    warmed = admin_client.post(LIST, {"action": "warm_now", **chosen}, follow=True)
    assert "1 worker was asked." in warmed.content.decode()
    assert len(told(live_redis, "worker-1")) == 1
    purged = admin_client.post(LIST, {"action": "purge", **chosen}, follow=True)
    assert "1 prompt cache was purged." in purged.content.decode()
    assert not PromptCache.objects.for_tenant(tenant).get().is_pinned


def test_the_list_asks_as_often_for_many_as_for_one(
    admin_client: Client,
    tenant: Tenant,
    deployment: ModelDeployment,
    live_redis: Redis,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    live_redis.ping()
    for number in range(20):
        prompt_cache_create(cache=unsaved(tenant, deployment, name=f"cache-{number}"))
    admin_client.get(LIST)
    with django_assert_max_num_queries(8):
        assert "cache-19" in admin_client.get(LIST).content.decode()
