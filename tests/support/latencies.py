"""Latencies for tests: one stream's summary, slots in Redis, and months of rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from uuid import UUID

from django.db import connection

from apps.ops.enums import LatencyLevel
from apps.ops.latency.scopes import floor_to
from apps.ops.latency.tiers import DAYS, HOURS, TIERS, Tier
from apps.ops.models import LatencyMark
from apps.ops.models.latency import LatencyRow
from apps.tenants.live_state import call_function
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.store import SlotBook, filing_call, slot_of
from headrace_wire.latency.summary import SeriesKey, Summary

_ROWS = 500


def summary_of(ttft: float = 0.2, *, requests: int = 1, tokens: int = 100) -> Summary:
    """Return streams that all took the same; phases are parts of `ttft`, gaps a twentieth of it."""
    summary = Summary()
    parts = {Measure.ADMISSION: 0.05, Measure.QUEUE: 0.15, Measure.PREFILL: 0.7, Measure.FLUSH: 0.1}
    for measure, share in {Measure.TTFT: 1.0, **parts, Measure.GUARD: 0.0, Measure.TPOT: 0.05}.items():
        summary.histogram(measure).add(ttft * share, requests)
    summary.histogram(Measure.GAP).add(ttft / 20, requests * (tokens - 1))
    summary.histogram(Measure.TOTAL).add(ttft * 6, requests)
    summary.count(Tally.REQUESTS, requests)
    summary.count(Tally.TOKENS, requests * tokens)
    return summary


def latencies_file(part: str, at: datetime, series: Mapping[SeriesKey, Summary]) -> None:
    """Do what a gateway does: file what it measured in the slot of `at`; `part` names it."""
    by_deployment: dict[str, dict[SeriesKey, Summary]] = {}
    for key, summary in series.items():
        by_deployment.setdefault(key.deployment, {})[key] = summary
    slot = slot_of(at.timestamp())
    call_function(*filing_call([SlotBook.of(part, slot, name, some) for name, some in by_deployment.items()]))


def latencies_seed(tenant_ids: Sequence[UUID], *, now: datetime, deployment: str = "tiny") -> int:
    """Store rows of everything, of a deployment and of its tenants, as far back as tiers are kept; return how many.

    The first tenant has rows in all tiers, the others by hour and day, with next to nothing in them.
    """
    packed = [summary_of(0.05 * 1.1**step, requests=20 + step).pack() for step in range(40)]
    first, *others = tenant_ids
    written = 0
    for tier in TIERS:
        rows = [
            _row(tier, at, level, tenant, deployment if level is not LatencyLevel.ALL else "", body)
            for at, body in _spans(tier, now, packed)
            for level, tenant in (
                (LatencyLevel.ALL, ""),
                (LatencyLevel.DEPLOYMENT, ""),
                (LatencyLevel.TENANT, first.hex),
            )
        ]
        for some in _batches(rows):
            tier.model._base_manager.bulk_create(some)
        written += len(rows)
        LatencyMark.objects.update_or_create(tier=tier.name, defaults={"until": floor_to(now, tier.span)})
    for tier in (HOURS, DAYS):
        written += _copy(tier, first, others)
    return written


def _row(tier: Tier, at: datetime, level: LatencyLevel, tenant: str, deployment: str, packed: bytes) -> LatencyRow:
    return tier.model(at=at, level=level, tenant_ref=tenant, deployment=deployment, packed=packed)


def _spans(tier: Tier, now: datetime, packed: Sequence[bytes]) -> Iterator[tuple[datetime, bytes]]:
    at, end = floor_to(now - tier.kept, tier.span) + tier.span, floor_to(now, tier.span)
    number = 0
    while at < end:
        yield at, packed[number % len(packed)]
        at, number = at + tier.span, number + 1


def _batches(rows: Iterable[LatencyRow]) -> Iterator[list[LatencyRow]]:
    rest = iter(rows)
    while some := list(islice(rest, _ROWS)):
        yield some


def _copy(tier: Tier, first: UUID, others: Sequence[UUID]) -> int:
    """Give other tenants the rows of the first, in the database: half a million through the ORM would take a minute."""
    table = connection.ops.quote_name(tier.model._meta.db_table)
    columns = "at, level, worker, api_key_ref, deployment"
    statement = (
        f"INSERT INTO {table} (tenant_ref, packed, {columns})"
        f" SELECT %s, %s, {columns} FROM {table} WHERE level = 'tenant' AND tenant_ref = %s"
    )
    body = Summary().pack()
    with connection.cursor() as cursor:
        cursor.executemany(statement, [(other.hex, body, first.hex) for other in others])
    return tier.model._base_manager.exclude(tenant_ref__in=["", first.hex]).count()
