"""Writes of autoscale policies. What is measured and decided is written by `tick` and `carrying_out`."""

from collections.abc import Mapping

from django.db import transaction

from apps.deployments.models import AutoscalePolicy
from apps.tenants.changes import row_changes, row_lock
from apps.tenants.enums import AuditAction
from apps.tenants.services import Actor, audit_record


@transaction.atomic
def autoscale_policy_create(*, policy: AutoscalePolicy, actor: Actor = None) -> AutoscalePolicy:
    """Stores a new policy.

    Raises:
        ValidationError: A field is not acceptable, or the deployment has a policy.
    """
    policy.full_clean()
    policy.save(force_insert=True)
    _audit(policy, AuditAction.AUTOSCALE_CREATED, row_changes(None, policy), actor)
    return policy


@transaction.atomic
def autoscale_policy_update(*, policy: AutoscalePolicy, actor: Actor = None) -> AutoscalePolicy:
    """Stores the new values that `policy` carries; the next tick goes by them.

    Raises:
        ValidationError: A field is not acceptable.
    """
    before = row_lock(policy)
    policy.full_clean()
    changes = row_changes(before, policy)
    policy.save(force_update=True)
    if changes:
        _audit(policy, AuditAction.AUTOSCALE_CHANGED, changes, actor)
    return policy


@transaction.atomic
def autoscale_policy_delete(*, policy: AutoscalePolicy, actor: Actor = None) -> None:
    """Deletes a policy. Workers stay as they are, and so does the record of decisions."""
    row_lock(policy)
    _audit(policy, AuditAction.AUTOSCALE_DELETED, {"deployment": str(policy.deployment)}, actor)
    policy.delete()


def _audit(policy: AutoscalePolicy, action: AuditAction, details: Mapping[str, object], actor: Actor) -> None:
    audit_record(tenant=None, actor=actor, action=action, target=policy, details=details)
