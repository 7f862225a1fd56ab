"""Reads of quotas."""

from decimal import Decimal

from apps.deployments.prices import to_micros
from apps.quotas.models import Quota
from headrace_wire.snapshot import BudgetDuration, QuotaConfig, QuotaScope


def quota_configs() -> list[QuotaConfig]:
    """Returns the snapshot's section: every quota."""
    return [
        QuotaConfig(
            id=quota.id.hex,
            scope=QuotaScope(quota.scope),
            tenant_id=quota.tenant_id.hex if quota.tenant_id else None,
            user_id=quota.membership.user_id.hex if quota.membership else None,
            api_key_id=quota.api_key_id.hex if quota.api_key_id else None,
            deployment_id=quota.deployment_id.hex if quota.deployment_id else None,
            rpm_limit=quota.rpm_limit,
            tpm_limit=quota.tpm_limit,
            max_parallel_requests=quota.max_parallel_requests,
            max_budget_micros=_micros(quota.max_budget),
            soft_budget_micros=_micros(quota.soft_budget),
            token_budget=quota.token_budget,
            budget_duration=BudgetDuration(quota.budget_duration) if quota.budget_duration else None,
            override_factor=float(quota.override_factor or 1),
            override_until=quota.override_until.timestamp() if quota.override_until else 0.0,
        )
        for quota in Quota.all_tenants.select_related("membership").order_by("pk")
    ]


def _micros(amount: Decimal | None) -> int | None:
    return None if amount is None else to_micros(amount)
