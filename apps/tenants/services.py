"""Writes of tenants, members and the audit trail.

Every write of configuration, here and in the apps above, goes in this order: lock, check, change, audit row,
publication of the snapshot after commit.
"""

from collections.abc import Mapping

from django.contrib.auth.base_user import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.utils.translation import gettext_lazy as _

from apps.tenants.changes import row_changes, row_lock
from apps.tenants.enums import AuditAction, MemberRole
from apps.tenants.models import AuditEvent, Membership, Tenant
from apps.tenants.removal import removal_prepare
from apps.tenants.sealed_text import seal
from apps.tenants.snapshots import snapshot_publish_on_commit
from apps.tenants.webhook_targets import webhook_secret_new, webhook_url_check
from headrace_wire.api_key import redact

Actor = AbstractBaseUser | None
"""Who does it; None for the system itself (commands, tasks)."""

SYSTEM = "system"


def audit_record(
    *, tenant: Tenant | None, actor: Actor, action: AuditAction, target: models.Model, details: Mapping[str, object]
) -> AuditEvent:
    """Adds a row to the audit trail, in the caller's transaction. Keys in texts are cut down to their public part."""
    return AuditEvent.all_tenants.create(
        tenant=tenant,
        actor_id=actor.pk if actor is not None else None,
        actor_label=str(actor)[:254] if actor is not None else SYSTEM,
        action=action,
        object_type=target._meta.label_lower,
        object_id=str(target.pk),
        object_label=redact(str(target))[:254],
        details=_redacted(details),
    )


def _redacted(value: object) -> object:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: _redacted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(inner) for inner in value]
    return value


@transaction.atomic
def tenant_create(*, tenant: Tenant, actor: Actor = None) -> Tenant:
    """Stores a new tenant.

    Raises:
        ValidationError: A field is not acceptable, or the slug is taken.
    """
    _webhook_secret_ensure(tenant)
    tenant.full_clean()
    webhook_url_check(tenant.webhook_url, field="webhook_url")
    tenant.save(force_insert=True)
    changes = row_changes(None, tenant)
    audit_record(tenant=tenant, actor=actor, action=AuditAction.TENANT_CREATED, target=tenant, details=changes)
    snapshot_publish_on_commit()
    return tenant


@transaction.atomic
def tenant_update(*, tenant: Tenant, actor: Actor = None) -> Tenant:
    """Stores the new values that `tenant` carries.

    Raises:
        ValidationError: A field is not acceptable, or the slug would change.
    """
    before = row_lock(tenant)
    changes = row_changes(before, tenant)
    if not changes:
        return tenant
    if isinstance(before, Tenant):
        tenant.webhook_secret = before.webhook_secret  # renewed by its own service alone
    _webhook_secret_ensure(tenant)
    if "slug" in changes:
        raise ValidationError({"slug": _("The slug stands in metrics and URLs; it cannot be changed.")}, code="slug")
    tenant.full_clean()
    if "webhook_url" in changes:
        webhook_url_check(tenant.webhook_url, field="webhook_url")
    tenant.save(force_update=True)
    audit_record(tenant=tenant, actor=actor, action=AuditAction.TENANT_CHANGED, target=tenant, details=changes)
    snapshot_publish_on_commit()
    return tenant


@transaction.atomic
def tenant_delete(*, tenant: Tenant, actor: Actor = None) -> None:
    """Deletes a tenant that is switched off, and all that is kept for it; usage and the audit trail stay, without it.

    Raises:
        ValidationError: The tenant is active: whoever uses it is to be let go first.
    """
    locked = Tenant.objects.select_for_update().get(pk=tenant.pk)
    if locked.is_active:
        raise ValidationError(_("Switch the tenant off first."), code="active")
    snapshot_publish_on_commit()  # first: who knows of no tenant keeps nothing for it
    removal_prepare(locked)
    details = {"slug": [locked.slug, None], "id": [locked.pk.hex, None]}
    audit_record(tenant=None, actor=actor, action=AuditAction.TENANT_DELETED, target=locked, details=details)
    locked.delete()


@transaction.atomic
def tenant_webhook_secret_renew(*, tenant: Tenant, actor: Actor = None) -> str:
    """Gives the tenant a new secret for its webhook and returns it: it is shown to its owner once.

    What is posted from now on is signed with the new one alone.
    """
    row_lock(tenant)
    secret = webhook_secret_new()
    tenant.webhook_secret = seal(secret)
    tenant.save(update_fields=["webhook_secret", "updated_at"])
    audit_record(
        tenant=tenant, actor=actor, action=AuditAction.TENANT_WEBHOOK_SECRET_RENEWED, target=tenant, details={}
    )
    return secret


def _webhook_secret_ensure(tenant: Tenant) -> None:
    """Nothing is ever posted unsigned: a URL without a secret gets one."""
    if tenant.webhook_url and not tenant.webhook_secret:
        tenant.webhook_secret = seal(webhook_secret_new())


@transaction.atomic
def membership_create(
    *, tenant: Tenant, user: AbstractBaseUser, role: MemberRole = MemberRole.MEMBER, actor: Actor = None
) -> Membership:
    """Takes a user into the tenant.

    Raises:
        ValidationError: The user is a member already.
    """
    membership = Membership(tenant=tenant, user_id=user.pk, role=role)
    membership.full_clean()
    membership.save(force_insert=True)
    details = {"role": [None, role], "user": [None, str(user)]}
    audit_record(tenant=tenant, actor=actor, action=AuditAction.MEMBER_ADDED, target=membership, details=details)
    return membership


@transaction.atomic
def membership_update(*, membership: Membership, actor: Actor = None) -> Membership:
    """Stores a member's new role.

    Raises:
        ValidationError: The role is unknown, or tenant or user would change.
    """
    before = row_lock(membership)
    changes = row_changes(before, membership)
    if not changes:
        return membership
    if changes.keys() - {"role"}:
        raise ValidationError(_("A membership stays with its user and tenant."), code="moved")
    membership.full_clean()
    membership.save(force_update=True)
    audit_record(
        tenant=membership.tenant,
        actor=actor,
        action=AuditAction.MEMBER_CHANGED,
        target=membership,
        details=changes,
    )
    return membership


@transaction.atomic
def membership_delete(*, membership: Membership, actor: Actor = None) -> None:
    """Ends a membership, and with it the member's quotas."""
    row_lock(membership)
    details = {"role": [membership.role, None], "user": [str(membership.user), None]}
    audit_record(
        tenant=membership.tenant,
        actor=actor,
        action=AuditAction.MEMBER_REMOVED,
        target=membership,
        details=details,
    )
    membership.delete()
    snapshot_publish_on_commit()
