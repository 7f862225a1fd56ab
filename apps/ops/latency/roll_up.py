"""From slots in Redis to rows by minute, and from each tier of rows to the next.

A run computes spans from all that is there of them and replaces their rows, so that it may be repeated, be lost, or run
twice: it holds the marks locked from before it reads until its rows are stored, and only then tells Redis which minutes
the database has. What a gateway files late makes its minute, and all spans around it, due again.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from django.db import transaction
from django.utils import timezone

from apps.ops.enums import LatencyLevel
from apps.ops.latency.scopes import floor_to
from apps.ops.latency.tiers import MINUTES, TIERS, Tier
from apps.ops.models import LatencyMark
from apps.tenants.live_state import call_function, redis_client
from headrace_wire.latency.store import READABLE_SECONDS, minutes_waiting, rolled_call, series_read
from headrace_wire.latency.summary import SeriesKey, Summary

GRACE = timedelta(seconds=15)
"""How long after a minute gateways may file its last slot before it is looked at; what comes later is late."""
BATCH = 200
"""Rows of one statement: of one to three kilobytes each."""

_FIELDS = ("level", "tenant_ref", "worker", "api_key_ref", "deployment")
RowKey = tuple[str, str, str, str, str]
"""Values of `_FIELDS`."""


def latency_roll_up(*, now: datetime | None = None) -> int:
    """Brings all tiers up to now; returns how many rows were written.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; the next run does what this one could not.
    """
    now = now or timezone.now()
    until = floor_to(now - GRACE, MINUTES.span)
    with transaction.atomic():
        marks = _marks_lock(until)
        waiting = minutes_waiting(redis_client())
        due = {minute: times for minute, times in waiting.items() if minute < until.timestamp()}
        oldest = now - timedelta(seconds=READABLE_SECONDS)
        touched = {at for at in map(_moment, due) if at >= oldest}
        written = 0
        for at in sorted(touched):
            written += _rows_replace(MINUTES, at, _rows_of_minute(at))
        for lower, tier in pairwise(TIERS):
            touched = _spans_due(lower, tier, touched, since=marks[tier.name], until=until, now=now)
            for at in sorted(touched):
                written += _rows_replace(tier, at, _rows_of_span(lower, at, at + tier.span))
        for tier in TIERS:
            LatencyMark.objects.filter(tier=tier.name).update(until=floor_to(until, tier.span))
    if due:
        call_function(*rolled_call(due))
    return written


def latency_expire(*, now: datetime | None = None) -> int:
    """Deletes rows that are older than their tier is kept; returns how many."""
    now = now or timezone.now()
    return sum(tier.model._base_manager.filter(at__lt=now - tier.kept).delete()[0] for tier in TIERS)


def _marks_lock(until: datetime) -> dict[str, datetime]:
    """Returns how far each tier is, and keeps other runs from beginning; where there was none, from here on."""
    LatencyMark.objects.bulk_create(
        [LatencyMark(tier=tier.name, until=floor_to(until, tier.span)) for tier in TIERS], ignore_conflicts=True
    )
    return {mark.tier: mark.until for mark in LatencyMark.objects.select_for_update().order_by("tier")}


def _spans_due(
    lower: Tier, tier: Tier, touched: Iterable[datetime], *, since: datetime, until: datetime, now: datetime
) -> set[datetime]:
    """Returns the spans of a tier that are over and have not been computed, or not with all that there is now."""
    due = {floor_to(at, tier.span) for at in touched}
    at = max(since, floor_to(now - lower.kept, tier.span) + tier.span)
    while at < until:
        due.add(at)
        at += tier.span
    return {at for at in due if at + tier.span <= until}


def _rows_of_minute(at: datetime) -> dict[RowKey, Summary]:
    """Returns what Redis has of a minute, at all levels."""
    series: dict[SeriesKey, Summary] = {}
    start = int(at.timestamp())
    for part in series_read(redis_client(), start=start, end=start + 60):
        series.setdefault(part.key, Summary()).merge_packed(part.packed)
    rows: dict[RowKey, Summary] = {}
    for key, summary in series.items():
        for row_key in _keys_of(key):
            rows.setdefault(row_key, Summary()).merge(summary)
    return rows


def _keys_of(key: SeriesKey) -> Iterator[RowKey]:
    yield LatencyLevel.ALL, "", "", "", ""
    yield LatencyLevel.DEPLOYMENT, "", "", "", key.deployment
    yield LatencyLevel.TENANT, key.tenant_id, "", "", key.deployment
    if key.worker:
        yield LatencyLevel.WORKER, "", key.worker, "", key.deployment
    yield LatencyLevel.SERIES, key.tenant_id, key.worker, key.key_id, key.deployment


def _rows_of_span(lower: Tier, start: datetime, end: datetime) -> dict[RowKey, Summary]:
    """Returns the sums of the rows that the tier below has."""
    rows: dict[RowKey, Summary] = {}
    found = lower.model._base_manager.filter(at__gte=start, at__lt=end).order_by().values_list(*_FIELDS, "packed")
    for *key, packed in found.iterator(chunk_size=BATCH):
        rows.setdefault((key[0], key[1], key[2], key[3], key[4]), Summary()).merge_packed(bytes(packed))
    return rows


def _rows_replace(tier: Tier, at: datetime, rows: Mapping[RowKey, Summary]) -> int:
    made = [
        tier.model(at=at, packed=summary.pack(), **dict(zip(_FIELDS, key, strict=True)))
        for key, summary in rows.items()
    ]
    tier.model._base_manager.bulk_create(
        made, batch_size=BATCH, update_conflicts=True, unique_fields=[*_FIELDS, "at"], update_fields=["packed"]
    )
    return len(made)


def _moment(unix_seconds: int) -> datetime:
    return datetime.fromtimestamp(unix_seconds, UTC)
