"""Mirrors where circuit breakers stand into `BreakerStanding` rows, for the admin and for alerts.

Gateways move them, in Redis. What opens and closes between two looks is not seen here; gateways' metrics have it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
from django.db import transaction

from apps.deployments.enums import BreakerState
from apps.deployments.models import BreakerStanding, ModelDeployment
from apps.tenants.enums import AuditAction
from apps.tenants.live_state import redis_client
from apps.tenants.services import audit_record
from headrace_wire import redis_keys
from headrace_wire.breakers import BreakerReading, breaker_stored
from headrace_wire.functions import Reply

logger = structlog.get_logger(__name__)


def breakers_sync() -> int:
    """Brings the rows up to date; returns how many breakers have moved. Each move has its row in the audit trail.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; the rows stay as they were.
    """
    guarded = list(ModelDeployment.objects.filter(is_breaker_on=True).only("id", "name").order_by("pk"))
    with transaction.atomic():
        BreakerStanding.objects.exclude(deployment__in=guarded).delete()
        for deployment in guarded:
            BreakerStanding.objects.get_or_create(deployment=deployment)
        rows = {row.pk: row for row in BreakerStanding.objects.select_for_update().order_by("pk")}
        # Read once the rows are locked: what somebody does by hand meanwhile would be written over, as nobody's move.
        pairs = zip(guarded, _readings([deployment.pk.hex for deployment in guarded]), strict=True)
        return sum(_move(deployment, rows[deployment.pk], reading) for deployment, reading in pairs)


def _readings(deployment_ids: Sequence[str]) -> list[BreakerReading]:
    pipeline = redis_client().pipeline(transaction=False)
    for deployment_id in deployment_ids:
        pipeline.hgetall(redis_keys.breaker_key(deployment_id))
    hashes: Reply = pipeline.execute() if deployment_ids else []
    return [breaker_stored(fields) for fields in hashes]


def _move(deployment: ModelDeployment, row: BreakerStanding, reading: BreakerReading) -> bool:
    """Writes what has changed; says whether the breaker has moved."""
    before = row.state, row.reason, row.since
    row.state = BreakerState(reading.state.value)
    row.reason = reading.reason.value if reading.reason is not None else ""
    row.since = datetime.fromtimestamp(reading.since_ms / 1000, UTC) if reading.since_ms else None
    if (row.state, row.reason, row.since) == before:
        return False
    row.save()
    if row.state == before[0]:
        return False
    logger.warning("breaker_moved", deployment=deployment.name, state=row.state, reason=row.reason)
    audit_record(
        tenant=None,
        actor=None,
        action=AuditAction.DEPLOYMENT_BREAKER_MOVED,
        target=deployment,
        details={"state": [before[0], str(row.state)], "reason": row.reason},
    )
    return True
