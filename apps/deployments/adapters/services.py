"""Writes of adapters: lock, check, change, audit row, publication of the snapshot after commit."""

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from apps.deployments.adapters.checking import adapter_check
from apps.deployments.adapters.enums import AdapterState
from apps.deployments.models import LoraAdapter, ModelDeployment
from apps.tenants.changes import row_changes, row_lock
from apps.tenants.enums import AuditAction
from apps.tenants.services import Actor, audit_record
from apps.tenants.snapshots import snapshot_publish_on_commit
from headrace_wire.adapters import AdapterCheck

MODEL_NAME_LENGTH = 128
"""What a model's public name may have, with an adapter or without."""


@transaction.atomic
def adapter_create(*, adapter: LoraAdapter, actor: Actor = None) -> LoraAdapter:
    """Stores a new adapter; nobody can use it before a check has passed.

    Raises:
        ValidationError: A field is not acceptable, or the name is taken.
    """
    _reset(adapter)
    _check(adapter)
    adapter.save(force_insert=True)
    _audit(adapter, AuditAction.ADAPTER_CREATED, row_changes(None, adapter), actor)
    snapshot_publish_on_commit()
    return adapter


@transaction.atomic
def adapter_update(*, adapter: LoraAdapter, actor: Actor = None) -> LoraAdapter:
    """Stores the new values that `adapter` carries; one that lies elsewhere now must be checked again.

    Raises:
        ValidationError: As for a new one, or the tenant would change.
    """
    before = row_lock(adapter)
    if isinstance(before, LoraAdapter):
        if before.tenant_id != adapter.tenant_id:
            raise ValidationError({"tenant": _("The tenant stays as it is; make another one.")}, code="tenant")
        if (before.place, before.deployment_id) != (adapter.place, adapter.deployment_id):
            _reset(adapter)
    _check(adapter)
    changes = row_changes(before, adapter)
    if changes:
        adapter.save(force_update=True)
        _audit(adapter, AuditAction.ADAPTER_CHANGED, changes, actor)
        snapshot_publish_on_commit()
    return adapter


def adapter_judge(*, adapter: LoraAdapter, actor: Actor = None) -> AdapterCheck:
    """Checks an adapter's files, and keeps what came of it: one that passed can be used from then on.

    The files are read outside of any transaction. Where the row says something else meanwhile, nothing is kept.
    """
    found = adapter_check(adapter)
    with transaction.atomic():
        before = row_lock(adapter)
        is_same = isinstance(before, LoraAdapter) and (before.place, before.deployment_id) == (
            adapter.place,
            adapter.deployment_id,
        )
        if not is_same:
            return found
        adapter.state = AdapterState.CHECKED if found.is_accepted else AdapterState.REFUSED
        adapter.last_error = "\n".join(found.problems)
        adapter.checked_at = timezone.now()
        if found.is_accepted:
            adapter.revision, adapter.rank, adapter.base_model = found.revision, found.rank, found.base_model[:500]
        changes = row_changes(before, adapter)
        adapter.save(update_fields=["state", "last_error", "checked_at", "revision", "rank", "base_model"])
        _audit(adapter, AuditAction.ADAPTER_CHECKED, changes, actor)
        snapshot_publish_on_commit()
    return found


@transaction.atomic
def adapter_delete(*, adapter: LoraAdapter, actor: Actor = None) -> None:
    """Deletes an adapter, not its files; its name is unknown to callers from then on."""
    row_lock(adapter)
    _audit(adapter, AuditAction.ADAPTER_DELETED, {"name": [str(adapter), None]}, actor)
    adapter.delete()
    snapshot_publish_on_commit()


def _reset(adapter: LoraAdapter) -> None:
    adapter.state, adapter.revision, adapter.rank = AdapterState.UNCHECKED, "", None
    adapter.last_error, adapter.base_model, adapter.checked_at = "", "", None


def _check(adapter: LoraAdapter) -> None:
    adapter.full_clean()
    deployment = adapter.deployment
    if deployment.is_restricted and not deployment.visible_tenants.filter(pk=adapter.tenant_id).exists():
        raise ValidationError({"deployment": _("The tenant may not use this deployment.")}, code="deployment")
    if len(str(adapter)) > MODEL_NAME_LENGTH:
        problem = _("With the deployment's name it is longer than %d characters.") % MODEL_NAME_LENGTH
        raise ValidationError({"name": problem}, code="name")
    if ModelDeployment.objects.filter(name=str(adapter)).exists():
        raise ValidationError({"name": _("A deployment is called so already.")}, code="name")


def _audit(adapter: LoraAdapter, action: AuditAction, details: dict[str, list[object]], actor: Actor) -> None:
    audit_record(tenant=adapter.tenant, actor=actor, action=action, target=adapter, details=details)
