"""Writes of deployments. Workers are mirrored in `fleet_mirror`."""

from collections.abc import Iterable

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from apps.deployments.models import ModelDeployment
from apps.tenants.changes import row_changes, row_lock, set_changes
from apps.tenants.enums import AuditAction
from apps.tenants.models import Tenant
from apps.tenants.services import Actor, audit_record
from apps.tenants.snapshots import snapshot_publish_on_commit
from headrace_wire.api_key import redact

ERROR_LENGTH = 4000
"""Characters kept of an engine's message."""


@transaction.atomic
def deployment_create(
    *, deployment: ModelDeployment, visible_tenants: Iterable[Tenant] = (), actor: Actor = None
) -> ModelDeployment:
    """Stores a new deployment; workers are started for it by its name.

    Raises:
        ValidationError: A field or an engine argument is not acceptable, or the name is taken.
    """
    deployment.full_clean()
    deployment.save(force_insert=True)
    deployment.visible_tenants.set(visible_tenants)
    audit_record(
        tenant=None,
        actor=actor,
        action=AuditAction.DEPLOYMENT_CREATED,
        target=deployment,
        details=row_changes(None, deployment),
    )
    snapshot_publish_on_commit()
    return deployment


@transaction.atomic
def deployment_update(
    *, deployment: ModelDeployment, visible_tenants: Iterable[Tenant] | None = None, actor: Actor = None
) -> ModelDeployment:
    """Stores the new values that `deployment` carries; `visible_tenants` of None leaves them as they are.

    Raises:
        ValidationError: A field or an engine argument is not acceptable, or the name would change.
    """
    before = row_lock(deployment)
    deployment.full_clean()
    changes = row_changes(before, deployment)
    if "name" in changes:
        raise ValidationError({"name": _("Workers and callers know it by this name; make another one.")}, code="name")
    deployment.save(force_update=True)
    if visible_tenants is not None:
        previous = list(deployment.visible_tenants.all())
        deployment.visible_tenants.set(visible_tenants)
        changes |= set_changes("visible_tenants", previous, deployment.visible_tenants.all())
    if changes:
        audit_record(
            tenant=None, actor=actor, action=AuditAction.DEPLOYMENT_CHANGED, target=deployment, details=changes
        )
        snapshot_publish_on_commit()
    return deployment


@transaction.atomic
def deployment_delete(*, deployment: ModelDeployment, actor: Actor = None) -> None:
    """Deletes a deployment with its quotas. Keys that were restricted to it alone may use nothing afterwards."""
    row_lock(deployment)
    audit_record(
        tenant=None,
        actor=actor,
        action=AuditAction.DEPLOYMENT_DELETED,
        target=deployment,
        details={"name": deployment.name, "model": deployment.model},
    )
    deployment.delete()
    snapshot_publish_on_commit()


def deployment_error_record(*, name: str, message: str) -> bool:
    """Keeps an engine's message (its end, where the reason stands) on the deployment; returns whether it is new.

    An empty message clears it: a worker of the deployment got ready.
    """
    text = redact(message)[-ERROR_LENGTH:]
    at = timezone.now() if text else None
    rows = ModelDeployment.objects.filter(name=name).exclude(last_error=text)
    return rows.update(last_error=text, last_error_at=at) > 0
