"""Writes of prompt caches: lock, check, change, audit row, publication of the snapshot after commit."""

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from apps.caching.models import PromptCache
from apps.caching.prompt_measuring import prompt_cache_measure
from apps.caching.prompt_warming import prompt_caches_warm_soon, warmth_forget
from apps.tenants.changes import Changes, row_changes, row_lock
from apps.tenants.enums import AuditAction
from apps.tenants.services import Actor, audit_record
from apps.tenants.snapshots import snapshot_publish_on_commit

_SAID = ("system_prompt", "tools_text", "examples")


@transaction.atomic
def prompt_cache_create(*, cache: PromptCache, actor: Actor = None) -> PromptCache:
    """Stores a new prompt cache; a pinned one is computed by the deployment's workers at once.

    Raises:
        ValidationError: A field is not acceptable, the name is taken, or workers cannot hold it.
    """
    _check(cache)
    cache.save(force_insert=True)
    _audit(cache, AuditAction.PROMPT_CACHE_CREATED, row_changes(None, cache), actor)
    _publish()
    return cache


@transaction.atomic
def prompt_cache_update(*, cache: PromptCache, actor: Actor = None) -> PromptCache:
    """Stores the new values that `cache` carries; where it says something else, that is its next version.

    Raises:
        ValidationError: As for a new one, or the tenant would change.
    """
    before = row_lock(cache)
    if isinstance(before, PromptCache):
        if before.tenant_id != cache.tenant_id:
            raise ValidationError({"tenant": _("The tenant stays as it is; make another one.")}, code="tenant")
        cache.version = before.version
        if before.messages != cache.messages or before.deployment_id != cache.deployment_id:
            cache.version += 1
            cache.token_count = None
            transaction.on_commit(lambda: warmth_forget(cache_id=cache.pk.hex, with_use=False))
    _check(cache)
    changes = row_changes(before, cache)
    if changes:
        cache.save(force_update=True)
        _audit(cache, AuditAction.PROMPT_CACHE_CHANGED, changes, actor)
        _publish()
    return cache


@transaction.atomic
def prompt_cache_purge(*, cache: PromptCache, actor: Actor = None) -> None:
    """Lets workers forget it: it is pinned no more, and its counts begin anew.

    Its blocks leave a worker's memory as soon as others need it; until then only the tenant's own requests find them.
    """
    row_lock(cache)
    was_pinned, cache.is_pinned = cache.is_pinned, False
    cache.save(update_fields=["is_pinned", "updated_at"])
    _audit(cache, AuditAction.PROMPT_CACHE_PURGED, {"is_pinned": [was_pinned, False]}, actor)
    transaction.on_commit(lambda: warmth_forget(cache_id=cache.pk.hex, with_use=True))
    snapshot_publish_on_commit()


@transaction.atomic
def prompt_cache_delete(*, cache: PromptCache, actor: Actor = None) -> None:
    """Deletes a prompt cache; its name is unknown to callers from then on."""
    row_lock(cache)
    cache_id = cache.pk.hex
    _audit(cache, AuditAction.PROMPT_CACHE_DELETED, {"name": [cache.name, None]}, actor)
    cache.delete()
    transaction.on_commit(lambda: warmth_forget(cache_id=cache_id, with_use=True))
    snapshot_publish_on_commit()


def _check(cache: PromptCache) -> None:
    cache.full_clean()
    if cache.deployment.is_restricted and not cache.deployment.visible_tenants.filter(pk=cache.tenant_id).exists():
        raise ValidationError({"deployment": _("The tenant may not use this deployment.")}, code="deployment")
    prompt_cache_measure(cache)


def _publish() -> None:
    snapshot_publish_on_commit()
    transaction.on_commit(prompt_caches_warm_soon)


def _audit(cache: PromptCache, action: AuditAction, changes: Changes, actor: Actor) -> None:
    """Records what changed; of long texts, that they did."""
    details = {name: _lengths(change) if name in _SAID else change for name, change in changes.items()}
    audit_record(tenant=cache.tenant, actor=actor, action=action, target=cache, details=details)


def _lengths(change: list[object]) -> list[object]:
    return [None if value in (None, "", []) else f"{len(str(value))} characters" for value in change]
