"""Writes of plans and quotas. What they limit is decided in Redis at admission, by what the snapshot says."""

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import ProtectedError
from django.utils.translation import gettext_lazy as _

from apps.quotas.models import Plan, Quota
from apps.tenants.changes import row_changes, row_lock
from apps.tenants.enums import AuditAction
from apps.tenants.services import Actor, audit_record
from apps.tenants.snapshots import snapshot_publish_on_commit


@transaction.atomic
def plan_create(*, plan: Plan, actor: Actor = None) -> Plan:
    """Stores a new plan; tenants get it on their own pages.

    Raises:
        ValidationError: A field is not acceptable, or the name is taken.
    """
    plan.full_clean()
    plan.save(force_insert=True)
    details = row_changes(None, plan)
    audit_record(tenant=None, actor=actor, action=AuditAction.PLAN_CREATED, target=plan, details=details)
    return plan


@transaction.atomic
def plan_update(*, plan: Plan, actor: Actor = None) -> Plan:
    """Stores the new values that `plan` carries; they count for its tenants' new requests within a second.

    Raises:
        ValidationError: A field is not acceptable, or the name is taken.
    """
    before = row_lock(plan)
    plan.full_clean()
    changes = row_changes(before, plan)
    if changes:
        plan.save(force_update=True)
        audit_record(tenant=None, actor=actor, action=AuditAction.PLAN_CHANGED, target=plan, details=changes)
        snapshot_publish_on_commit()
    return plan


@transaction.atomic
def plan_delete(*, plan: Plan, actor: Actor = None) -> None:
    """Deletes a plan that no tenant has.

    Raises:
        ValidationError: A tenant has it.
    """
    row_lock(plan)
    audit_record(
        tenant=None, actor=actor, action=AuditAction.PLAN_DELETED, target=plan, details={"weight": [plan.weight, None]}
    )
    try:
        plan.delete()
    except ProtectedError as error:
        raise ValidationError(_("Tenants have this plan; give them another one first."), code="in_use") from error


@transaction.atomic
def quota_create(*, quota: Quota, actor: Actor = None) -> Quota:
    """Stores a new quota.

    Raises:
        ValidationError: Scope, target and limits do not fit together, or the target has one already.
    """
    quota.full_clean()
    quota.save(force_insert=True)
    audit_record(
        tenant=quota.tenant,
        actor=actor,
        action=AuditAction.QUOTA_CREATED,
        target=quota,
        details=row_changes(None, quota),
    )
    snapshot_publish_on_commit()
    return quota


@transaction.atomic
def quota_update(*, quota: Quota, actor: Actor = None) -> Quota:
    """Stores the new values that `quota` carries; they count for new requests within a second.

    Raises:
        ValidationError: Scope, target and limits do not fit together, or the target has one already.
    """
    before = row_lock(quota)
    changes = row_changes(before, quota)
    if not changes:
        return quota
    quota.full_clean()
    quota.save(force_update=True)
    audit_record(tenant=quota.tenant, actor=actor, action=AuditAction.QUOTA_CHANGED, target=quota, details=changes)
    snapshot_publish_on_commit()
    return quota


@transaction.atomic
def quota_delete(*, quota: Quota, actor: Actor = None) -> None:
    """Lifts a quota."""
    row_lock(quota)
    details = {name: [before, None] for name, (_, before) in row_changes(None, quota).items()}
    audit_record(tenant=quota.tenant, actor=actor, action=AuditAction.QUOTA_DELETED, target=quota, details=details)
    quota.delete()
    snapshot_publish_on_commit()
