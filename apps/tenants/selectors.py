"""Reads of tenants, members and the audit trail."""

from typing import Any
from uuid import UUID

from django.contrib.auth.base_user import AbstractBaseUser
from django.db.models import QuerySet

from apps.tenants.enums import INEXACT_FIELDS, InexactPolicy
from apps.tenants.models import Membership, Tenant
from headrace_wire.guard_policy import ExcerptRetention
from headrace_wire.snapshot import DetachedPolicy, TenantConfig


def tenant_get(*, slug: str) -> Tenant | None:
    """Returns the tenant, or None."""
    return Tenant.objects.filter(slug=slug).first()


def tenant_ids() -> set[str]:
    """Returns the ids of all tenants as other processes write them, inactive ones too."""
    return {tenant_id.hex for tenant_id in Tenant.objects.values_list("id", flat=True)}


def membership_get(*, tenant: Tenant, user: AbstractBaseUser) -> Membership | None:
    """Returns the user's place in the tenant, or None: also where tenant or user are inactive."""
    if not tenant.is_active or not user.is_active:
        return None
    return Membership.objects.for_tenant(tenant).filter(user_id=user.pk).select_related("tenant", "user").first()


def membership_find(*, tenant_id: str, user_id: str) -> Membership | None:
    """Returns the place of a user in a tenant by their ids, or None: also where one of them is inactive."""
    found = Membership.all_tenants.filter(tenant_id=tenant_id, user_id=user_id)
    return found.filter(user__is_active=True, tenant__is_active=True).select_related("tenant").first()


def membership_list(*, user: AbstractBaseUser) -> QuerySet[Membership]:
    """Returns the user's places in active tenants, by name."""
    return (
        Membership.all_tenants.filter(user_id=user.pk, user__is_active=True, tenant__is_active=True)
        .select_related("tenant")
        .order_by("tenant__name", "pk")
    )


def membership_choose(*, user: AbstractBaseUser, tenant_id: UUID | str | None) -> Membership | None:
    """Returns the place to work in: the one of `tenant_id` if it is the user's, else the first, else None."""
    places = list(membership_list(user=user))
    chosen = [place for place in places if tenant_id is not None and place.tenant_id == _as_uuid(tenant_id)]
    return next(iter(chosen or places), None)


def _as_uuid(value: UUID | str) -> UUID | None:
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except ValueError:
        return None


def tenant_configs() -> list[TenantConfig]:
    """Returns the snapshot's section: every tenant, inactive ones too, so that a refusal can say why."""
    return [
        TenantConfig(
            id=tenant.id.hex,
            slug=tenant.slug,
            name=tenant.name,
            active=tenant.is_active,
            time_zone=tenant.time_zone,
            stream_window=tenant.stream_window,
            max_connections=tenant.max_connections,
            detached_policy=DetachedPolicy(tenant.detached_policy),
            detached_tokens=tenant.detached_tokens,
            detached_grace_seconds=tenant.detached_grace_seconds,
            retention_seconds=tenant.log_retention_seconds,
            stall_timeout_seconds=tenant.stall_timeout_seconds,
            continue_inexactly=frozenset(
                kind for kind, name in INEXACT_FIELDS.items() if getattr(tenant, name) == InexactPolicy.CONTINUE
            ),
            intervention_excerpts=ExcerptRetention(tenant.intervention_excerpts),
            draft_tokens_per_minute=tenant.draft_tokens_per_minute,
            **_plan_fields(tenant),
        )
        for tenant in Tenant.objects.select_related("plan").order_by("pk")
    ]


def _plan_fields(tenant: Tenant) -> dict[str, Any]:
    """Where there is no plan, the snapshot's own defaults hold."""
    plan = tenant.plan
    if plan is None:
        return {}
    return {
        "weight": plan.weight,
        "priority": plan.priority,
        "request_priorities": frozenset(plan.request_priorities),
    }
