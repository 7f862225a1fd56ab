"""Prompt caches: what may be stored, what it becomes for gateways and workers, and what is recorded."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from redis import Redis

from apps.caching.models import PromptCache
from apps.caching.prompt_selectors import prompt_cache_configs
from apps.caching.prompt_services import (
    prompt_cache_create,
    prompt_cache_delete,
    prompt_cache_purge,
    prompt_cache_update,
)
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_create
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Tenant
from headrace_wire.messages import ChatTurn
from tests.caching.fleet import register_worker

EXAMPLES = [{"role": "user", "content": "Brest?"}, {"role": "assistant", "content": "At noon."}]


def unsaved(tenant: Tenant, deployment: ModelDeployment, **changes: Any) -> PromptCache:
    """Return a prompt cache of some 1,000 tokens."""
    fields: dict[str, Any] = {"name": "tides", "system_prompt": "You know the tides. " * 50, **changes}
    return PromptCache(tenant=tenant, deployment=deployment, **fields)


def test_what_it_says_is_what_gateways_and_workers_get(tenant: Tenant, deployment: ModelDeployment) -> None:
    cache = unsaved(tenant, deployment, system_prompt="Be exact.", tools_text="Use the almanac.", examples=EXAMPLES)
    prompt_cache_create(cache=cache)
    prompt_cache_create(cache=unsaved(tenant, deployment, name="off", is_active=False))
    (config,) = prompt_cache_configs()
    assert (config.id, config.tenant_id, config.deployment) == (cache.pk.hex, tenant.pk.hex, "tiny")
    assert config.messages == (
        ChatTurn("system", "Be exact.\n\nUse the almanac."),
        ChatTurn("user", "Brest?"),
        ChatTurn("assistant", "At noon."),
    )
    assert (config.version, config.pinned, config.tokens) == (1, False, 0)


def test_tenants_have_partitions_of_their_own(
    tenant: Tenant, other_tenant: Tenant, deployment: ModelDeployment
) -> None:
    for owner in (tenant, other_tenant):
        prompt_cache_create(cache=unsaved(owner, deployment))
    one, other = prompt_cache_configs()
    assert one.messages == other.messages
    assert one.cache_salt != other.cache_salt


def test_another_text_is_another_version_and_its_length_is_recorded(
    tenant: Tenant, deployment: ModelDeployment
) -> None:
    cache = prompt_cache_create(cache=unsaved(tenant, deployment))
    cache.is_pinned = True
    prompt_cache_update(cache=cache)
    assert cache.version == 1
    cache.system_prompt = "You know the tides better. "
    prompt_cache_update(cache=cache)
    cache.refresh_from_db()
    assert cache.version == 2
    events = list(AuditEvent.objects.for_tenant(tenant).filter(object_type="caching.promptcache").order_by("pk"))
    assert [event.action for event in events] == [
        AuditAction.PROMPT_CACHE_CREATED,
        AuditAction.PROMPT_CACHE_CHANGED,
        AuditAction.PROMPT_CACHE_CHANGED,
    ]
    assert events[2].details["system_prompt"] == ["1000 characters", "27 characters"]
    assert "tides" not in str(events[2].details)


def test_purged_and_deleted_ones_are_not_kept(
    tenant: Tenant, deployment: ModelDeployment, live_redis: Redis, django_capture_on_commit_callbacks: Any
) -> None:
    cache = prompt_cache_create(cache=unsaved(tenant, deployment, is_pinned=True))
    with django_capture_on_commit_callbacks(execute=True):
        prompt_cache_purge(cache=cache)
    assert not PromptCache.objects.for_tenant(tenant).get().is_pinned
    with django_capture_on_commit_callbacks(execute=True):
        prompt_cache_delete(cache=cache)
    assert prompt_cache_configs() == []
    assert not live_redis.keys("{hr}:warm:*")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system_prompt": ""}, "Write a system prompt, tools or examples."),
        ({"examples": {"role": "user"}}, "Write a list of at most"),
        ({"examples": [{"role": "system", "content": "x"}]}, "Message 1 needs a role"),
        ({"examples": [*EXAMPLES, {"role": "user", "content": 5}]}, "Message 3 needs a role"),
        ({"name": "no spaces"}, "Letters, digits"),
    ],
)
def test_bad_values_are_refused(
    tenant: Tenant, deployment: ModelDeployment, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        prompt_cache_create(cache=unsaved(tenant, deployment, **changes))


def test_a_deployment_that_the_tenant_may_not_use_is_refused(tenant: Tenant) -> None:
    hidden = deployment_create(deployment=ModelDeployment(name="hidden", model="models/tiny", is_restricted=True))
    with pytest.raises(ValidationError, match="may not use"):
        prompt_cache_create(cache=unsaved(tenant, hidden))


# ---- what workers can hold


def test_its_length_is_measured_as_the_worker_tokenises(
    tenant: Tenant, deployment: ModelDeployment, live_redis: Redis
) -> None:
    register_worker(live_redis, "tiny")
    cache = prompt_cache_create(cache=unsaved(tenant, deployment))
    assert cache.token_count is not None
    assert 0 < cache.token_count <= 1100
    assert cache.token_count % 32 == 0
    assert prompt_cache_configs()[0].tokens == cache.token_count


def test_one_that_leaves_no_room_for_a_prompt_is_refused(
    tenant: Tenant, deployment: ModelDeployment, live_redis: Redis
) -> None:
    register_worker(live_redis, "tiny", max_model_len=256)
    with pytest.raises(ValidationError, match="a prompt with its answer may have 256"):
        prompt_cache_create(cache=unsaved(tenant, deployment))


def test_what_cannot_be_pinned_is_refused_with_the_numbers(
    tenant: Tenant, other_tenant: Tenant, deployment: ModelDeployment, live_redis: Redis
) -> None:
    register_worker(live_redis, "tiny", cache_tokens=100_000)
    first = prompt_cache_create(cache=unsaved(other_tenant, deployment, is_pinned=True))
    assert first.token_count is not None
    tokens = first.token_count
    register_worker(live_redis, "tiny", incarnation="worker-2", cache_tokens=3 * tokens)
    with pytest.raises(ValidationError) as refused:
        prompt_cache_create(cache=unsaved(tenant, deployment, is_pinned=True))
    share = 3 * tokens // 2
    message = " ".join(refused.value.messages)
    for number in (f"has {tokens:,} tokens", "1 other prompt caches", f"with {tokens:,}", f"{share:,} may be pinned"):
        assert number in message
    assert f"{2 * tokens - share:,} too many" in message
    prompt_cache_create(cache=unsaved(tenant, deployment, is_pinned=False))
    first.system_prompt = "You know the tides. " * 60
    prompt_cache_update(cache=first)
