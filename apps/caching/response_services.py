"""Writes of response cache policies. Gateways keep and give answers by what the snapshot says."""

from django.db import transaction
from django.utils import timezone

from apps.caching.models import ResponseCachePolicy
from apps.tenants.changes import Changes, row_changes, row_lock
from apps.tenants.enums import AuditAction
from apps.tenants.live_state import call_function
from apps.tenants.services import Actor, audit_record
from apps.tenants.snapshots import snapshot_publish_on_commit
from headrace_wire import redis_keys


@transaction.atomic
def response_cache_create(*, policy: ResponseCachePolicy, actor: Actor = None) -> ResponseCachePolicy:
    """Stores a new policy.

    Raises:
        ValidationError: A field is not acceptable, or the tenant has a policy for the deployment.
    """
    policy.full_clean()
    policy.save(force_insert=True)
    _audit(policy, actor, AuditAction.RESPONSE_CACHE_CREATED, row_changes(None, policy))
    snapshot_publish_on_commit()
    return policy


@transaction.atomic
def response_cache_update(*, policy: ResponseCachePolicy, actor: Actor = None) -> ResponseCachePolicy:
    """Stores the new values that `policy` carries; they count for new requests within a second.

    Raises:
        ValidationError: A field is not acceptable, or the tenant has a policy for the deployment.
    """
    before = row_lock(policy)
    policy.full_clean()
    changes = row_changes(before, policy)
    if changes:
        policy.save(force_update=True)
        _audit(policy, actor, AuditAction.RESPONSE_CACHE_CHANGED, changes)
        snapshot_publish_on_commit()
    return policy


@transaction.atomic
def response_cache_delete(*, policy: ResponseCachePolicy, actor: Actor = None) -> None:
    """Deletes a policy, and what was kept under it."""
    row_lock(policy)
    details = {name: [before, None] for name, (_, before) in row_changes(None, policy).items()}
    _audit(policy, actor, AuditAction.RESPONSE_CACHE_DELETED, details)
    tenant_id, prefix = policy.tenant_id.hex, _prefix(policy)
    policy.delete()
    snapshot_publish_on_commit()
    transaction.on_commit(lambda: answers_forget(tenant_id=tenant_id, prefix=prefix), robust=True)


@transaction.atomic
def response_cache_purge(*, policy: ResponseCachePolicy, actor: Actor = None) -> ResponseCachePolicy:
    """Forgets what was kept under a policy; answers of streams that run now are not found either.

    The new generation makes old entries unreachable within a second, whoever still writes one; their memory is freed
    after the commit.
    """
    locked = ResponseCachePolicy.all_tenants.select_for_update().get(pk=policy.pk)
    policy.generation = locked.generation + 1
    policy.purged_at = timezone.now()
    policy.save(update_fields=["generation", "purged_at", "updated_at"])
    _audit(policy, actor, AuditAction.RESPONSE_CACHE_PURGED, {"generation": [locked.generation, policy.generation]})
    snapshot_publish_on_commit()
    tenant_id, prefix = policy.tenant_id.hex, _prefix(policy)
    transaction.on_commit(lambda: answers_forget(tenant_id=tenant_id, prefix=prefix), robust=True)
    return policy


def answers_forget(*, tenant_id: str, prefix: str = "") -> int:
    """Deletes a tenant's kept answers whose names begin so; returns how many.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; they end by themselves.
    """
    count, _bytes, _total = call_function("forget", redis_keys.kept_answers_keys(tenant_id), [prefix])
    return int(count)


def _prefix(policy: ResponseCachePolicy) -> str:
    return f"{policy.deployment_id.hex}:" if policy.deployment_id else ""


def _audit(policy: ResponseCachePolicy, actor: Actor, action: AuditAction, details: Changes) -> None:
    audit_record(tenant=policy.tenant, actor=actor, action=action, target=policy, details=details)
