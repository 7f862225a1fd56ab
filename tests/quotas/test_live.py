"""What the admin shows of quotas at this moment, and what it says a request would get: as admission decides."""

import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks
from redis import Redis

from apps.deployments.models import ModelDeployment
from apps.quotas import live
from apps.quotas.enums import BudgetDuration, QuotaScope
from apps.quotas.models import Quota
from apps.quotas.services import quota_create, quota_update
from apps.tenants.live_state import call_function
from apps.tenants.models import AuditEvent, Tenant
from apps.tenants.snapshots import snapshot_publish
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import GenerateRequest, SamplingParams
from headrace_wire.quota_terms import admission_terms
from headrace_wire.request_queue import RequestQueue, Verdict

SIMULATE = reverse("admin:quotas_quota_simulate")


@pytest.fixture
def quota(tenant: Tenant, deployment: ModelDeployment, live_redis: Redis) -> Quota:
    quota = Quota(
        scope=QuotaScope.TENANT,
        tenant=tenant,
        rpm_limit=2,
        tpm_limit=1_000,
        max_parallel_requests=3,
        max_budget=Decimal(5),
        token_budget=50_000,
        budget_duration=BudgetDuration.MONTH,
    )
    quota_create(quota=quota)
    snapshot_publish()
    return quota


@pytest.fixture
def admit(tenant: Tenant, deployment: ModelDeployment, quota: Quota) -> Callable[[], Verdict]:
    """Admits a request of the tenant's, as a gateway does."""
    queue = RequestQueue.__new__(RequestQueue)

    def one() -> Verdict:
        config = live.snapshot_current()
        (who,) = [one for one in config.tenants if one.id == tenant.pk.hex]
        (where,) = [one for one in config.deployments if one.id == deployment.pk.hex]
        request = GenerateRequest(new_stream_id(), who.id, where.name, SamplingParams(max_tokens=200), "salt")
        terms = admission_terms(
            tenant=who,
            api_key=None,
            user_id=None,
            deployment=where,
            quotas=config.quotas,
            prompt_tokens=100,
            max_tokens=200,
            now=timezone.now(),
        )
        name, keys, args = queue.admit_call(request, queue_limit=10, queue_timeout_seconds=60, terms=terms)
        return RequestQueue.parse_admission(call_function(name, keys, args)).verdict

    return one


def form(of: Tenant, at: ModelDeployment, **changes: Any) -> dict[str, Any]:
    values = {"tenant": str(of.pk), "deployment": str(at.pk), "api_key": ""}
    return {**values, "prompt_tokens": "100", "max_tokens": "200", **changes}


def test_the_quotas_page_shows_what_is_used(admin_client: Client, quota: Quota, admit: Callable[[], Verdict]) -> None:
    page = reverse("admin:quotas_quota_change", args=[quota.pk])
    assert "2 requests left this minute" in admin_client.get(page).content.decode()
    assert admit() is Verdict.QUEUED
    text = admin_client.get(page).content.decode()
    assert "1 requests left this minute" in text
    assert re.search(r"[7-9]\d\d tokens left this minute", text), "they come back while one looks"
    assert "300 of 50,000 tokens used" in text
    assert "0 of 3 running, 0 waiting" in text


def test_small_money_is_told_to_its_last_digit(
    admin_client: Client, quota: Quota, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    quota.max_budget = Decimal("0.0015")
    with django_capture_on_commit_callbacks(execute=True):
        quota_update(quota=quota)
    page = reverse("admin:quotas_quota_change", args=[quota.pk])
    assert "0 of 0.0015 spent" in admin_client.get(page).content.decode()


def test_a_simulated_request_gets_what_a_real_one_would_and_counts_nothing(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment, admit: Callable[[], Verdict], live_redis: Redis
) -> None:
    def ask(**changes: Any) -> str:
        before = {key: live_redis.dump(key) for key in live_redis.keys("{hr}*")}
        answer = admin_client.post(SIMULATE, form(tenant, deployment, **changes))
        assert {key: live_redis.dump(key) for key in live_redis.keys("{hr}*")} == before
        return str(answer.content.decode())

    assert "nobody waits" in ask()
    assert "may take more tokens than its limit gives" in ask(max_tokens="20000")
    assert admit() is Verdict.QUEUED
    assert "number 2 of 2 that wait" in ask()
    assert admit() is Verdict.QUEUED
    refused = ask()
    assert "requests per minute" in refused
    assert "it would fit in" in refused
    assert admit() is Verdict.REFUSED
    page = admin_client.get(SIMULATE).content.decode()
    assert tenant.name in page, "who waits"


def test_bad_values_of_a_simulation_are_shown(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment, quota: Quota
) -> None:
    for changes in (
        {"tenant": ""},
        {"deployment": "x"},
        {"prompt_tokens": "-1"},
        {"prompt_tokens": str(2**64)},
        {"max_tokens": "0"},
        {"max_tokens": "1" + "0" * 30},
    ):
        answer = admin_client.post(SIMULATE, form(tenant, deployment, **changes))
        assert answer.status_code == 200
        assert answer.context["form"].errors
        assert answer.context["appraisal"] is None


def test_an_override_has_an_end_acts_and_is_audited(
    tenant: Tenant,
    quota: Quota,
    admit: Callable[[], Verdict],
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    assert [admit() for _ in range(3)] == [Verdict.QUEUED, Verdict.QUEUED, Verdict.REFUSED]
    quota.override_factor = Decimal(10)
    with pytest.raises(ValidationError, match="belong together"):
        quota_update(quota=quota)
    quota.override_until = timezone.now() + timedelta(hours=1)
    quota.override_reason = "launch day"
    with django_capture_on_commit_callbacks(execute=True):
        quota_update(quota=quota)
    event = AuditEvent.all_tenants.filter(object_id=str(quota.pk)).latest("created_at")
    assert event.details["override_reason"] == ["", "launch day"]
    (config,) = [one for one in live.snapshot_current().quotas if one.id == quota.pk.hex]
    assert (config.override_factor, config.override_until > 0) == (10.0, True)
