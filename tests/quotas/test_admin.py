from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.quotas.enums import QuotaScope
from apps.quotas.models import Plan, Quota
from apps.quotas.services import plan_create, quota_create
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Membership, Tenant
from apps.tenants.services import tenant_create, tenant_update

PLANS = reverse("admin:quotas_plan_changelist")
QUOTAS = reverse("admin:quotas_quota_changelist")
ADD = reverse("admin:quotas_quota_add")


def test_a_quota_is_made_changed_and_lifted(admin_client: Client, tenant: Tenant) -> None:
    form = {"scope": "tenant", "tenant": str(tenant.pk), "rpm_limit": "60"}
    assert admin_client.post(ADD, form).status_code == 302
    quota = Quota.objects.for_tenant(tenant).get()
    change = reverse("admin:quotas_quota_change", args=[quota.pk])
    budget = {"max_budget": "12.50", "budget_duration": "1mo"}
    assert admin_client.post(change, {**form, **budget}).status_code == 302
    assert "12.5 / Month" in admin_client.get(QUOTAS).content.decode()
    chosen = {"action": "delete_selected", "_selected_action": [str(quota.pk)], "post": "yes"}
    assert admin_client.post(QUOTAS, chosen).status_code == 302
    actions = AuditEvent.objects.for_tenant(tenant).filter(object_type="quotas.quota").order_by("pk")
    assert [event.action for event in actions] == [
        AuditAction.QUOTA_CREATED,
        AuditAction.QUOTA_CHANGED,
        AuditAction.QUOTA_DELETED,
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rpm_limit": ""}, "Set at least one limit."),
        ({"scope": "global"}, "The scope and the chosen target do not fit together."),
        ({"max_budget": "5"}, "A budget and its period belong together."),
        ({"rpm_limit": "-1"}, "rpm_limit"),
        ({"scope": "nobody"}, "not one of the available choices"),
    ],
)
def test_bad_values_are_shown_in_the_form(
    admin_client: Client, tenant: Tenant, changes: dict[str, Any], message: str
) -> None:
    form = {"scope": "tenant", "tenant": str(tenant.pk), "rpm_limit": "60", **changes}
    answer = admin_client.post(ADD, form)
    assert answer.status_code == 200
    assert message in str(answer.context["adminform"].form.errors)
    assert not Quota.all_tenants.exists()


def test_a_plan_is_made_and_given_to_a_tenant(
    admin_client: Client, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    form = {"name": "Gold", "weight": "8", "priority": "0", "request_priorities": ["1", "2"]}
    assert admin_client.post(reverse("admin:quotas_plan_add"), form).status_code == 302
    plan = Plan.objects.get()
    assert (plan.weight, plan.priority, plan.request_priorities) == (8, 0, [1, 2])
    tenant.plan = plan
    tenant_update(tenant=tenant)
    assert "8" in admin_client.get(PLANS).content.decode()
    refused = admin_client.post(reverse("admin:quotas_plan_delete", args=[plan.pk]), {"post": "yes"})
    assert refused.status_code in {200, 403}
    assert Plan.objects.exists()
    for number in range(8):
        plan_create(plan=Plan(name=f"Plan {number}"))
    with django_assert_num_queries(4):
        admin_client.get(PLANS)


def test_list_takes_a_fixed_number_of_queries(
    admin_client: Client, membership: Membership, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def make(first: int, count: int) -> None:
        for number in range(first, first + count):
            tenant = tenant_create(tenant=Tenant(slug=f"tenant-{number}", name=f"Tenant {number}"))
            key, _ = api_key_create(api_key=ApiKey(tenant=tenant, name="key"))
            quota_create(quota=Quota(scope=QuotaScope.TENANT, tenant=tenant, rpm_limit=1))
            quota_create(quota=Quota(scope=QuotaScope.API_KEY, tenant=tenant, api_key=key, rpm_limit=1))

    quota_create(quota=Quota(scope=QuotaScope.MEMBER, tenant=membership.tenant, membership=membership, rpm_limit=1))
    make(0, 1)
    admin_client.get(QUOTAS)
    with django_assert_num_queries(6):
        admin_client.get(QUOTAS)
    make(1, 8)
    with django_assert_num_queries(6):
        admin_client.get(QUOTAS)


@pytest.mark.parametrize("forged", ["no such id", "00000000-0000-4000-8000-000000000000", "1", "\0"])
@pytest.mark.parametrize("scope", ["tenant", "member", "api_key"])
def test_a_forged_target_is_an_error_of_the_form(admin_client: Client, tenant: Tenant, scope: str, forged: str) -> None:
    targets = dict.fromkeys(("tenant", "membership", "api_key", "deployment"), forged)
    answer = admin_client.post(ADD, {"scope": scope, "rpm_limit": "60", **targets})
    assert targets.keys() <= answer.context["adminform"].form.errors.keys()
    assert admin_client.get(ADD, targets).status_code == 200
    assert not Quota.all_tenants.exists()
