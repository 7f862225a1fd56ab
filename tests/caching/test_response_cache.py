"""Response cache policies: what an admin may say, what gateways are told, and what a purge leaves."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks
from redis import Redis

from apps.caching import response_services as services
from apps.caching.models import ResponseCachePolicy
from apps.caching.response_selectors import kept_bytes, response_cache_terms_all
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_create
from apps.tenants.enums import AuditAction
from apps.tenants.live_state import call_function
from apps.tenants.models import AuditEvent, Tenant
from apps.tenants.snapshots import snapshot_build
from headrace_wire import redis_keys
from headrace_wire.response_cache_terms import ResponseCacheTerms, StaticRule

LIST = reverse("admin:caching_responsecachepolicy_changelist")
ADD = reverse("admin:caching_responsecachepolicy_add")
FORM = {
    "enabled": "on",
    "ttl_minutes": "30",
    "static_rule": "temperature_zero",
    "max_mebibytes": "64",
    "semantic_threshold": "0.95",
    "semantic_same_words": "on",
    "semantic_max_turns": "1",
}


def policy_of(tenant: Tenant, **values: Any) -> ResponseCachePolicy:
    return services.response_cache_create(policy=ResponseCachePolicy(tenant=tenant, **values))


def put(tenant: Tenant, name: str) -> None:
    """Keep an answer, as a gateway does."""
    call_function("keep", redis_keys.kept_answers_keys(tenant.id.hex), [name, "1:2:stop:body", 60_000, 2**20])


def names(live_redis: Redis, tenant: Tenant) -> set[str]:
    prefix = redis_keys.kept_answer_prefix(tenant.id.hex)
    return {key.decode().removeprefix(prefix) for key in live_redis.scan_iter(prefix + "*")}


def test_snapshot_section(tenant: Tenant, deployment: ModelDeployment) -> None:
    policy_of(
        tenant,
        deployment=deployment,
        ttl_minutes=15,
        static_rule="opt_in",
        count_requests=False,
        count_tokens=True,
        max_mebibytes=2,
        semantic=True,
        semantic_threshold=0.98,
        semantic_same_words=False,
        semantic_max_turns=3,
    )
    terms = ResponseCacheTerms(
        tenant_id=tenant.id.hex,
        deployment_id=deployment.id.hex,
        ttl_seconds=900,
        static=StaticRule.OPT_IN,
        count_requests=False,
        count_tokens=True,
        max_bytes=2 * 2**20,
        semantic=True,
        semantic_threshold=0.98,
        semantic_same_words=False,
        semantic_max_turns=3,
    )
    assert response_cache_terms_all() == [terms]
    assert snapshot_build(version=1).response_caches == [terms]


@pytest.mark.parametrize(
    "values",
    [
        *({"ttl_minutes": 14}, {"ttl_minutes": 61}, {"max_mebibytes": 0}, {"max_mebibytes": 5000}),
        *({"static_rule": "all"}, {"semantic_threshold": 0.89}, {"semantic_threshold": 1.01}),
        *({"semantic_max_turns": 0}, {"semantic_max_turns": 11}),
        {"semantic": True, "semantic_same_words": False, "semantic_threshold": 0.96},
    ],
)
def test_what_a_policy_may_not_say(tenant: Tenant, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        policy_of(tenant, **values)


def test_one_policy_for_a_deployment_and_one_for_all(tenant: Tenant, deployment: ModelDeployment) -> None:
    policy_of(tenant)
    policy_of(tenant, deployment=deployment)
    with pytest.raises(ValidationError, match="already"):
        policy_of(tenant)
    with pytest.raises(ValidationError, match="already"):
        policy_of(tenant, deployment=deployment)


def test_a_purge_frees_the_policys_answers_and_no_others(
    live_redis: Redis,
    tenant: Tenant,
    other_tenant: Tenant,
    deployment: ModelDeployment,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    policy = policy_of(tenant, deployment=deployment)
    mine = f"{deployment.id.hex}:digest"
    for owner in (tenant, other_tenant):
        put(owner, mine)
        put(owner, "another-deployment:digest")
    assert kept_bytes(tenant_id=tenant.id.hex) > 0
    with django_capture_on_commit_callbacks(execute=True):
        services.response_cache_purge(policy=policy)
    policy.refresh_from_db()
    assert (policy.generation, policy.purged_at is not None) == (1, True)
    assert names(live_redis, tenant) == {"another-deployment:digest"}
    assert names(live_redis, other_tenant) == {mine, "another-deployment:digest"}


def test_a_deleted_policy_leaves_nothing(
    live_redis: Redis, tenant: Tenant, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    policy = policy_of(tenant)
    put(tenant, "a:digest")
    with django_capture_on_commit_callbacks(execute=True):
        services.response_cache_delete(policy=policy)
    assert names(live_redis, tenant) == set()


def test_a_policy_is_made_changed_purged_and_deleted_in_the_admin(
    live_redis: Redis, admin_client: Client, tenant: Tenant
) -> None:
    form = {**FORM, "tenant": str(tenant.pk)}
    assert "Kept for the tenant" in admin_client.get(ADD).content.decode()
    assert admin_client.post(ADD, form).status_code == 302
    policy = ResponseCachePolicy.objects.for_tenant(tenant).get()
    change = reverse("admin:caching_responsecachepolicy_change", args=[policy.pk])
    put(tenant, "a:digest")
    assert live_redis.exists(redis_keys.kept_answer_prefix(tenant.id.hex) + "a:digest")
    assert "bytes" in admin_client.get(change).content.decode()
    assert admin_client.post(change, {**form, "ttl_minutes": "60"}).status_code == 302
    chosen = {"_selected_action": [str(policy.pk)]}
    assert admin_client.post(LIST, {**chosen, "action": "purge"}).status_code == 302
    assert admin_client.post(LIST, {**chosen, "action": "delete_selected", "post": "yes"}).status_code == 302
    events = AuditEvent.objects.for_tenant(tenant).filter(object_type="caching.responsecachepolicy").order_by("pk")
    assert [event.action for event in events] == [
        AuditAction.RESPONSE_CACHE_CREATED,
        AuditAction.RESPONSE_CACHE_CHANGED,
        AuditAction.RESPONSE_CACHE_PURGED,
        AuditAction.RESPONSE_CACHE_DELETED,
    ]


def test_bad_values_are_shown_in_the_form(admin_client: Client, tenant: Tenant) -> None:
    answer = admin_client.post(ADD, {**FORM, "tenant": str(tenant.pk), "ttl_minutes": "5"})
    assert answer.status_code == 200
    assert "greater than or equal to 15" in str(answer.context["adminform"].form.errors)


def test_the_list_takes_a_fixed_number_of_queries(
    admin_client: Client, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(6):
        row = deployment_create(deployment=ModelDeployment(name=f"model-{number}", model="x"))
        policy_of(tenant, deployment=row)
    admin_client.get(LIST)
    with django_assert_num_queries(6):
        admin_client.get(LIST)
