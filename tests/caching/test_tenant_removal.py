"""A tenant that is deleted: nothing that was kept or computed for it is found any more, and its neighbour keeps all."""

from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.core.management.base import CommandError
from pytest_django import DjangoCaptureOnCommitCallbacks
from redis import Redis

from apps.caching.models import PromptCache, ResponseCachePolicy
from apps.caching.prompt_services import prompt_cache_create
from apps.caching.response_services import response_cache_create
from apps.deployments.models import ModelDeployment
from apps.tenants.enums import AuditAction
from apps.tenants.live_state import call_function
from apps.tenants.models import AuditEvent, Tenant
from apps.tenants.services import tenant_delete, tenant_update
from apps.tenants.snapshots import snapshot_build
from headrace_wire import redis_keys
from headrace_wire.draft_budget import draft_name
from headrace_wire.messages import CancelPrefill
from tests.caching.fleet import register_worker, told


def furnish(redis: Redis, tenant: Tenant, deployment: ModelDeployment) -> PromptCache:
    """Give a tenant an answer, a pinned prompt cache that is warm and was used, and a draft that is being computed."""
    owner = tenant.pk.hex
    response_cache_create(policy=ResponseCachePolicy(tenant=tenant))
    kept = redis_keys.kept_answers_keys(owner)
    call_function("keep", kept, ["a:digest", "1:2:stop:body", 60_000, 2**20, "partition", "question"])
    drafts = [redis_keys.draft_bucket_key(owner), redis_keys.drafts_key(owner)]
    drafts += [redis_keys.open_drafts_key(owner), redis_keys.open_drafts_ending_key(owner)]
    prefill_id = f"draft-{tenant.slug}"
    name = draft_name(b"8 bytes.", prefill_id)
    call_function("draft", drafts, [64, 6000, 4, prefill_id, "", 60_000, name, "", 60_000])
    system = "You know the tides. " * 50
    row = PromptCache(tenant=tenant, deployment=deployment, name="tides", system_prompt=system, is_pinned=True)
    cache = prompt_cache_create(cache=row)
    redis.hset(redis_keys.prefix_warmth_key(cache.pk.hex), "worker-1", "report")
    redis.hset(redis_keys.prompt_cache_use_key(cache.pk.hex), "hits", 1)
    return cache


def keys_of(redis: Redis, tenant: Tenant, cache_id: str) -> set[str]:
    names = {key.decode() for key in redis.scan_iter("*")}
    return {name for name in names if tenant.pk.hex in name or cache_id in name}


def switch_off(tenant: Tenant) -> None:
    tenant.is_active = False
    tenant_update(tenant=tenant)


def test_nothing_of_it_is_left(
    live_redis: Redis,
    tenant: Tenant,
    other_tenant: Tenant,
    deployment: ModelDeployment,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    worker = register_worker(live_redis, deployment.name)
    cache, others = (furnish(live_redis, owner, deployment) for owner in (tenant, other_tenant))
    cache_id, owner, kept = cache.pk.hex, Tenant(pk=tenant.pk), keys_of(live_redis, other_tenant, others.pk.hex)
    switch_off(tenant)
    with django_capture_on_commit_callbacks(execute=True):
        tenant_delete(tenant=tenant)
    assert keys_of(live_redis, owner, cache_id) == set()
    assert keys_of(live_redis, other_tenant, others.pk.hex) == kept
    assert told(live_redis, worker) == [CancelPrefill(cache_id), CancelPrefill("draft-acme")]
    snapshot = snapshot_build(version=1)
    assert [config.id for config in snapshot.prompt_caches] == [others.pk.hex]
    assert [terms.tenant_id for terms in snapshot.response_caches] == [other_tenant.pk.hex]
    event = AuditEvent.all_tenants.get(action=AuditAction.TENANT_DELETED)
    assert event.details == {"slug": ["acme", None], "id": [owner.pk.hex, None]}


def test_an_active_one_is_not_deleted(live_redis: Redis, tenant: Tenant, deployment: ModelDeployment) -> None:
    cache = furnish(live_redis, tenant, deployment)
    before = keys_of(live_redis, tenant, cache.pk.hex)
    with pytest.raises(ValidationError, match="Switch the tenant off first"):
        tenant_delete(tenant=tenant)
    assert keys_of(live_redis, tenant, cache.pk.hex) == before


def test_the_command_says_what_it_did(live_redis: Redis, tenant: Tenant) -> None:
    with pytest.raises(CommandError, match="Switch the tenant off first"):
        call_command("delete_tenant", "acme")
    switch_off(tenant)
    out = StringIO()
    call_command("delete_tenant", "acme", stdout=out)
    assert out.getvalue() == "acme is deleted.\n"
    with pytest.raises(CommandError, match="There is no tenant 'acme'"):
        call_command("delete_tenant", "acme")
