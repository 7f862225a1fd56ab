from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from apps.accounts.models import ApiKey
from apps.deployments.models import ModelDeployment
from apps.quotas import services
from apps.quotas.enums import BudgetDuration, QuotaScope
from apps.quotas.models import Plan, Quota
from apps.quotas.selectors import quota_configs
from apps.tenants.enums import AuditAction
from apps.tenants.managers import UnscopedQueryError
from apps.tenants.models import AuditEvent, Membership, Tenant
from apps.tenants.services import membership_delete, tenant_update
from headrace_wire import snapshot
from headrace_wire.api_key import ApiKeyToken


def tenant_quota(owner: Tenant, **values: Any) -> Quota:
    return Quota(**{"scope": QuotaScope.TENANT, "tenant": owner, "rpm_limit": 60, **values})


def test_snapshot_section(membership: Membership, deployment: ModelDeployment) -> None:
    quota = Quota(
        scope=QuotaScope.MEMBER,
        tenant=membership.tenant,
        membership=membership,
        deployment=deployment,
        max_budget=Decimal("12.5"),
        token_budget=1_000_000,
        budget_duration=BudgetDuration.MONTH,
    )
    services.quota_create(quota=quota)
    assert quota_configs() == [
        snapshot.QuotaConfig(
            id=quota.id.hex,
            scope=snapshot.QuotaScope.MEMBER,
            tenant_id=membership.tenant_id.hex,
            user_id=membership.user_id.hex,
            deployment_id=deployment.id.hex,
            max_budget_micros=12_500_000,
            token_budget=1_000_000,
            budget_duration=snapshot.BudgetDuration.MONTH,
        )
    ]


def test_created_changed_and_lifted_with_audit_rows(tenant: Tenant) -> None:
    quota = services.quota_create(quota=tenant_quota(tenant))
    quota.rpm_limit = 120
    services.quota_update(quota=quota)
    services.quota_update(quota=quota)
    services.quota_delete(quota=quota)
    events = AuditEvent.objects.for_tenant(tenant).filter(object_type="quotas.quota").order_by("pk")
    assert [event.action for event in events] == [
        AuditAction.QUOTA_CREATED,
        AuditAction.QUOTA_CHANGED,
        AuditAction.QUOTA_DELETED,
    ]
    assert events[1].details == {"rpm_limit": [60, 120]}
    assert events[2].details["rpm_limit"] == [120, None]
    assert quota_configs() == []


@pytest.mark.parametrize(
    "values",
    [
        {"rpm_limit": None},
        {"rpm_limit": 0},
        {"scope": QuotaScope.GLOBAL},
        {"scope": QuotaScope.MEMBER},
        {"scope": QuotaScope.API_KEY},
        {"scope": QuotaScope.DEPLOYMENT, "tenant": None},
        {"scope": "other"},
        {"max_budget": Decimal(5)},
        {"budget_duration": BudgetDuration.DAY},
        {"max_budget": Decimal(-1), "budget_duration": BudgetDuration.DAY},
    ],
)
def test_what_does_not_fit_together_is_refused(tenant: Tenant, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        services.quota_create(quota=tenant_quota(tenant, **values))
    assert quota_configs() == []


@pytest.mark.parametrize(
    "values",
    [
        {"rpm_limit": None},
        {"scope": QuotaScope.GLOBAL},
        {"scope": "other"},
        {"tenant": None},
        {"max_budget": Decimal(5)},
        {"budget_duration": BudgetDuration.DAY},
        {"max_budget": Decimal(5), "budget_duration": "2y"},
    ],
)
def test_the_database_refuses_what_goes_around_the_services(tenant: Tenant, values: dict[str, Any]) -> None:
    quota = services.quota_create(quota=tenant_quota(tenant))
    with pytest.raises(IntegrityError), transaction.atomic():
        Quota.all_tenants.filter(pk=quota.pk).update(**values)


def test_a_plan_is_made_changed_and_deleted_with_audit_rows(tenant: Tenant) -> None:
    plan = services.plan_create(plan=Plan(name="Gold", weight=4))
    tenant.plan = plan
    tenant_update(tenant=tenant)
    with pytest.raises(ValidationError, match="Tenants have this plan"):
        services.plan_delete(plan=plan)
    plan.weight = 8
    services.plan_update(plan=plan)
    services.plan_update(plan=plan)
    tenant.plan = None
    tenant_update(tenant=tenant)
    services.plan_delete(plan=plan)
    events = AuditEvent.all_tenants.filter(object_type="quotas.plan").order_by("pk")
    assert [event.action for event in events] == [
        AuditAction.PLAN_CREATED,
        AuditAction.PLAN_CHANGED,
        AuditAction.PLAN_DELETED,
    ]
    assert events[1].details == {"weight": [4, 8]}


@pytest.mark.parametrize(
    "values",
    [
        {"weight": 0},
        {"weight": 101},
        {"priority": 4},
        {"request_priorities": [4]},
        {"request_priorities": ["high"]},
        {"request_priorities": 1},
        {"name": ""},
    ],
)
def test_a_plan_that_no_queue_knows_is_refused(db: None, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        services.plan_create(plan=Plan(**{"name": "Gold", **values}))


@pytest.mark.parametrize("values", [{"weight": 0}, {"weight": 101}, {"priority": 4}])
def test_the_database_refuses_such_a_plan_too(db: None, values: dict[str, int]) -> None:
    plan = services.plan_create(plan=Plan(name="Gold"))
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.filter(pk=plan.pk).update(**values)


def test_one_quota_per_target_and_deployment(tenant: Tenant, deployment: ModelDeployment) -> None:
    services.quota_create(quota=tenant_quota(tenant))
    services.quota_create(quota=tenant_quota(tenant, deployment=deployment))
    for again in (tenant_quota(tenant), tenant_quota(tenant, deployment=deployment)):
        with pytest.raises(ValidationError, match="already"):
            services.quota_create(quota=again)
        with pytest.raises(IntegrityError), transaction.atomic():
            again.save(force_insert=True)


def test_there_is_one_global_quota(db: None) -> None:
    services.quota_create(quota=Quota(scope=QuotaScope.GLOBAL, tpm_limit=1000))
    with pytest.raises(ValidationError, match="already"):
        services.quota_create(quota=Quota(scope=QuotaScope.GLOBAL, tpm_limit=2000))


def test_a_key_of_another_tenant_is_not_limited(issued: tuple[ApiKey, ApiKeyToken], other_tenant: Tenant) -> None:
    quota = Quota(scope=QuotaScope.API_KEY, tenant=other_tenant, api_key=issued[0], rpm_limit=1)
    with pytest.raises(ValidationError, match="another tenant"):
        services.quota_create(quota=quota)


def test_a_query_without_a_tenant_is_refused(tenant: Tenant, other_tenant: Tenant) -> None:
    services.quota_create(quota=tenant_quota(tenant))
    with pytest.raises(UnscopedQueryError):
        Quota.objects.all()
    assert Quota.objects.for_tenant(tenant).count() == 1
    assert not Quota.objects.for_tenant(other_tenant)


def test_a_quota_ends_with_its_member(membership: Membership) -> None:
    quota = Quota(scope=QuotaScope.MEMBER, tenant=membership.tenant, membership=membership, rpm_limit=1)
    services.quota_create(quota=quota)
    membership_delete(membership=membership)
    assert quota_configs() == []
