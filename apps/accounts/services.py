"""Writes of users and API keys."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, Q
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from apps.accounts.enums import ApiKeyScope
from apps.accounts.models import ApiKey, User
from apps.tenants.changes import Changes, row_changes, row_lock, set_changes
from apps.tenants.enums import AuditAction
from apps.tenants.models import Membership
from apps.tenants.services import Actor, audit_record
from apps.tenants.snapshots import snapshot_publish_on_commit
from apps.tenants.ui_events import session_group, sockets_close
from headrace_wire.api_key import ApiKeyToken

DEFAULT_SCOPES = (ApiKeyScope.INFERENCE, ApiKeyScope.MODELS)
ROTATION_GRACE = timedelta(hours=24)
"""How long a rotated key goes on working unless the caller says otherwise."""


@transaction.atomic
def user_create(*, user: User, actor: Actor = None) -> User:
    """Stores a new user, with the password that `User.set_password` gave it.

    Raises:
        ValidationError: The email is malformed or taken.
    """
    user.full_clean(exclude=["password"])
    user.save(force_insert=True)
    details = row_changes(None, user)
    audit_record(tenant=None, actor=actor, action=AuditAction.USER_CREATED, target=user, details=dict(details))
    return user


@transaction.atomic
def user_update(*, user: User, actor: Actor = None) -> User:
    """Stores the new values that `user` carries; a new password is noted without it.

    Raises:
        ValidationError: The email is malformed or taken.
    """
    before = row_lock(user)
    user.full_clean(exclude=["password"])
    changes = row_changes(before, user)
    if isinstance(before, User) and before.password != user.password:
        changes["password"] = ["(hidden)", "(hidden)"]
    if not changes:
        return user
    user.save(force_update=True)
    audit_record(tenant=None, actor=actor, action=AuditAction.USER_CHANGED, target=user, details=dict(changes))
    snapshot_publish_on_commit()
    return user


@transaction.atomic
def api_key_create(
    *, api_key: ApiKey, allowed_deployments: Iterable[Model] = (), actor: Actor = None
) -> tuple[ApiKey, ApiKeyToken]:
    """Stores a new key and returns it with its token: the only time that the secret exists outside the caller.

    `api_key` is unsaved and carries tenant, name, user, scopes, restriction and expiry; without scopes it gets
    `DEFAULT_SCOPES`.

    Raises:
        ValidationError: A field is not acceptable, or the user is no member of the tenant.
    """
    token = ApiKeyToken.generate()
    api_key.public_id = token.public_id
    api_key.secret_sha256 = token.secret_sha256
    api_key.scopes = api_key.scopes or list(DEFAULT_SCOPES)
    api_key.created_by_id = actor.pk if actor is not None else None
    api_key.full_clean()
    api_key.save(force_insert=True)
    _allowed_deployments_set(api_key, allowed_deployments)
    audit_record(
        tenant=api_key.tenant,
        actor=actor,
        action=AuditAction.API_KEY_CREATED,
        target=api_key,
        details=row_changes(None, api_key),
    )
    snapshot_publish_on_commit()
    return api_key, token


@transaction.atomic
def api_key_own_create(*, membership: Membership, name: str, actor: Actor = None) -> tuple[ApiKey, ApiKeyToken]:
    """Makes a key of the member's own, with the rights that members have; returns what `api_key_create` does.

    Raises:
        ValidationError: The name is not acceptable, or the member has as many keys as members may have.
    """
    row_lock(membership)  # so that two at a time are counted one after the other
    usable = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    held = ApiKey.objects.for_tenant(membership.tenant).filter(usable, user=membership.user_id, revoked_at__isnull=True)
    if held.count() >= settings.HEADRACE_MEMBER_KEYS:
        raise ValidationError(
            _("You have %(most)d keys, as many as a member may have. Revoke one that you no longer use."),
            code="too_many_keys",
            params={"most": settings.HEADRACE_MEMBER_KEYS},
        )
    api_key = ApiKey(tenant=membership.tenant, user_id=membership.user_id, name=name)
    return api_key_create(api_key=api_key, actor=actor)


@transaction.atomic
def api_key_update(
    *, api_key: ApiKey, allowed_deployments: Iterable[Model] | None = None, actor: Actor = None
) -> ApiKey:
    """Stores the new values that `api_key` carries; `allowed_deployments` of None leaves them as they are.

    Raises:
        ValidationError: A field is not acceptable, or the key would move to another tenant or member.
    """
    before = row_lock(api_key)
    changes = row_changes(before, api_key)
    if changes.keys() & {"tenant", "public_id"}:
        raise ValidationError(_("A key stays with its tenant."), code="moved")
    api_key.full_clean()
    api_key.save(force_update=True)
    changes |= _allowed_deployments_set(api_key, allowed_deployments)
    if changes:
        audit_record(
            tenant=api_key.tenant, actor=actor, action=AuditAction.API_KEY_CHANGED, target=api_key, details=changes
        )
        snapshot_publish_on_commit()
    return api_key


@transaction.atomic
def api_key_rotate(
    *, api_key: ApiKey, grace: timedelta = ROTATION_GRACE, actor: Actor = None
) -> tuple[ApiKey, ApiKeyToken]:
    """Makes a successor with the same rights; the old key ends after `grace`, or at its own expiry if that is sooner.

    Raises:
        ValidationError: The key is revoked, expired, or has a successor already.
    """
    old = ApiKey.all_tenants.select_for_update().get(pk=api_key.pk)
    now = timezone.now()
    if not old.is_usable(at=now):
        raise ValidationError(_("The key is revoked or expired; make a new one."), code="ended")
    if ApiKey.all_tenants.filter(rotated_from=old).exists():
        raise ValidationError(_("The key has been rotated already."), code="rotated")
    new = ApiKey(
        tenant=old.tenant,
        user=old.user,
        name=old.name,
        scopes=list(old.scopes),
        is_restricted=old.is_restricted,
        expires_at=_extended(old, now=now),
        rotated_from=old,
    )
    new, token = api_key_create(api_key=new, allowed_deployments=list(old.allowed_deployments.all()), actor=actor)
    old.expires_at = min(now + grace, old.expires_at or now + grace)
    old.save(update_fields=["expires_at"])
    details = {"successor": new.public_id, "ends_at": old.expires_at.isoformat()}
    audit_record(tenant=old.tenant, actor=actor, action=AuditAction.API_KEY_ROTATED, target=old, details=details)
    snapshot_publish_on_commit()
    return new, token


@transaction.atomic
def api_key_revoke(*, api_key: ApiKey, actor: Actor = None) -> ApiKey:
    """Ends a key at once: gateways refuse it within a second. Revoking twice changes nothing."""
    stored = ApiKey.all_tenants.select_for_update().get(pk=api_key.pk)
    if stored.revoked_at is None:
        stored.revoked_at = timezone.now()
        stored.save(update_fields=["revoked_at"])
        details = {"revoked_at": stored.revoked_at.isoformat()}
        audit_record(
            tenant=stored.tenant, actor=actor, action=AuditAction.API_KEY_REVOKED, target=stored, details=details
        )
        snapshot_publish_on_commit()
    return stored


def _allowed_deployments_set(api_key: ApiKey, allowed: Iterable[Model] | None) -> Changes:
    if allowed is None:
        return {}
    before = list(api_key.allowed_deployments.all())
    api_key.allowed_deployments.set(allowed)  # type: ignore[arg-type]  # an app above this one names their type
    return set_changes("allowed_deployments", before, api_key.allowed_deployments.all())


def _extended(old: ApiKey, *, now: datetime) -> datetime | None:
    """A key that expires gets a successor that lives as long as it was meant to."""
    return None if old.expires_at is None else now + (old.expires_at - old.created_at)


def session_end(*, request: HttpRequest, **_: object) -> None:
    """Ends the session of somebody who signs out, wherever that is, and then closes the sockets that it opened."""
    session_key = request.session.session_key
    request.session.flush()  # Django does it next: a page that asks again at once must not find it
    if session_key is not None:
        sockets_close(session_group(session_key))
