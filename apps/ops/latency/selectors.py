"""Reads latencies and fleet samples over time: from the tier of rows that fits the range, its newest end from Redis.

Each tier gives what it has up to its mark, the next finer one goes on from there, and Redis has the rest: some queries
for a range, however long it is, and as many points as it has steps.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from apps.ops.enums import LatencyLevel
from apps.ops.latency.fleet_rows import fleet_points
from apps.ops.latency.scopes import FleetPoint, LatencyPoint, LatencyScope, TimeRange
from apps.ops.latency.tiers import TIERS
from apps.ops.models import LatencyMark
from apps.tenants.live_state import redis_client
from headrace_wire.latency.store import READABLE_SECONDS, SLOT_SECONDS, series_read, totals_read
from headrace_wire.latency.summary import SeriesKey


def latency_series(scope: LatencyScope, time_range: TimeRange) -> list[LatencyPoint]:
    """Returns a point for each step of the range, also where nothing happened.

    Raises:
        redis.exceptions.RedisError: Redis does not answer, and the range reaches beyond what the database has.
    """
    points = [LatencyPoint(at=at) for at in time_range.steps()]
    for at, packed in _packed(scope, time_range):
        points[(at - time_range.start) // time_range.step].merge_packed(packed)
    return points


def latency_total(scope: LatencyScope, time_range: TimeRange) -> LatencyPoint:
    """Returns all of the range in one point.

    Raises:
        redis.exceptions.RedisError: As `latency_series`.
    """
    total = LatencyPoint(at=time_range.start)
    for _, packed in _packed(scope, time_range):
        total.merge_packed(packed)
    return total


def fleet_series(scope: LatencyScope, time_range: TimeRange) -> list[FleetPoint]:
    """Returns the fleet at each step for which there is a sample; of a scope only deployment and worker count.

    Raises:
        redis.exceptions.RedisError: As `latency_series`.
    """
    return fleet_points(scope.deployment, scope.worker, time_range)


def _packed(scope: LatencyScope, time_range: TimeRange) -> Iterator[tuple[datetime, bytes]]:
    """Yields times and packed summaries of all that the range has."""
    at, end = time_range.start, time_range.end
    tiers = [tier for tier in reversed(TIERS) if tier.span <= time_range.step]
    marks = dict(LatencyMark.objects.values_list("tier", "until")) if tiers else {}
    fields = _fields_of(scope)
    for tier in tiers:
        until = min(marks.get(tier.name, at), end)
        if until > at:
            rows = tier.model._base_manager.filter(**fields, at__gte=at, at__lt=until).order_by()
            for row_at, packed in rows.values_list("at", "packed"):
                yield row_at, bytes(packed)
            at = until
    if at < end:
        yield from _live(scope, at, end)


def _live(scope: LatencyScope, start: datetime, end: datetime) -> Iterator[tuple[datetime, bytes]]:
    """Yields what Redis has."""
    oldest = timezone.now() - timedelta(seconds=READABLE_SECONDS)
    first, last = int(max(start, oldest).timestamp()), int(end.timestamp())
    first -= first % SLOT_SECONDS
    if scope.tenant_id is None and scope.key_id is None and scope.worker is None:
        for slot, packed in totals_read(redis_client(), start=first, end=last, deployment=scope.deployment):
            yield datetime.fromtimestamp(slot, UTC), packed
        return
    for part in series_read(redis_client(), start=first, end=last, deployment=scope.deployment):
        if _is_in(part.key, scope):
            yield datetime.fromtimestamp(part.slot, UTC), part.packed


def _is_in(key: SeriesKey, scope: LatencyScope) -> bool:
    return (
        (scope.tenant_id is None or key.tenant_id == scope.tenant_id.hex)
        and (scope.key_id is None or key.key_id == scope.key_id)
        and (scope.worker is None or key.worker == scope.worker)
    )


def _fields_of(scope: LatencyScope) -> dict[str, str]:
    """Returns which rows to read: those of the level with the fewest, and what they must say."""
    given = {
        "deployment": scope.deployment,
        "tenant_ref": None if scope.tenant_id is None else scope.tenant_id.hex,
        "worker": scope.worker,
        "api_key_ref": scope.key_id,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    names = asked.keys() - {"deployment"}
    if names == {"tenant_ref"}:
        return {"level": LatencyLevel.TENANT, "worker": "", "api_key_ref": "", **asked}
    if names == {"worker"}:
        return {"level": LatencyLevel.WORKER, "tenant_ref": "", "api_key_ref": "", **asked}
    if names:
        return {"level": LatencyLevel.SERIES, **asked}
    level = LatencyLevel.DEPLOYMENT if asked else LatencyLevel.ALL
    return {"level": level, "tenant_ref": "", "worker": "", "api_key_ref": "", "deployment": "", **asked}
