"""Writes of quotas. What they limit is decided in Redis at admission, by what the snapshot says."""

from django.db import transaction

from apps.quotas.models import Quota
from apps.tenants.changes import row_changes, row_lock
from apps.tenants.enums import AuditAction
from apps.tenants.services import Actor, audit_record
from apps.tenants.snapshots import snapshot_publish_on_commit


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
