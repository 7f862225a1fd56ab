"""Reads of users and API keys."""

from datetime import timedelta

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from apps.accounts.models import ApiKey, User
from apps.tenants.models import Membership, Tenant
from headrace_wire.snapshot import ApiKeyConfig

LISTED_AFTER_END = timedelta(days=1)
"""How long a revoked or expired key stays in the snapshot, so that the log can say why it was refused."""


def user_get(*, email: str) -> User | None:
    """Returns the user who signs in with that email, or None."""
    return User.objects.filter(email=email.strip().lower()).first()


def api_key_list(*, tenant: Tenant) -> QuerySet[ApiKey]:
    """Returns the tenant's keys, newest first."""
    return ApiKey.objects.for_tenant(tenant).select_related("user", "created_by")


def api_key_own_list(*, membership: Membership) -> QuerySet[ApiKey]:
    """Returns a member's own keys in his tenant, newest first; ended ones too."""
    return ApiKey.objects.for_tenant(membership.tenant).filter(user_id=membership.user_id).order_by("-created_at")


def api_key_configs() -> list[ApiKeyConfig]:
    """Returns the snapshot's section: every key that is valid or ended within a day.

    A member's key counts as revoked while the member is switched off or no longer in the tenant.
    """
    since = timezone.now() - LISTED_AFTER_END
    through = ApiKey.allowed_deployments.through
    place = Membership.all_tenants.filter(tenant=OuterRef("tenant"), user=OuterRef("user"), user__is_active=True)
    keys = (
        ApiKey.all_tenants.filter(Q(revoked_at__isnull=True) | Q(revoked_at__gt=since))
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=since))
        .annotate(is_owned=Q(user__isnull=True) | Exists(place))
        .order_by("pk")
    )
    allowed: dict[object, set[str]] = {}
    for key_id, deployment_id in through.objects.values_list("apikey_id", "modeldeployment_id"):
        allowed.setdefault(key_id, set()).add(deployment_id.hex)
    return [
        ApiKeyConfig(
            id=key.id.hex,
            public_id=key.public_id,
            secret_sha256=bytes(key.secret_sha256),
            tenant_id=key.tenant_id.hex,
            user_id=key.user_id.hex if key.user_id else None,
            scopes=frozenset(key.scopes),
            deployment_ids=frozenset(allowed.get(key.id, ())) if key.is_restricted else None,
            expires_at=key.expires_at.timestamp() if key.expires_at else None,
            revoked=key.revoked_at is not None or not key.is_owned,
        )
        for key in keys
    ]
