"""Rows of the fleet by minute and hour, and points of any range from them and from what Redis has since.

As with latencies, a span is computed from all that there is of it and its rows are replaced: a second run changes
nothing, and the next run does what one that was lost could not.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from django.db.models import Aggregate, Avg, Max, Min, Sum
from django.utils import timezone

from apps.ops.enums import FleetSpan
from apps.ops.latency.fleet_figures import (
    MOSTS,
    NAMES,
    SUMS,
    Figures,
    Whose,
    figures_of,
    over_part,
    over_time,
    together,
)
from apps.ops.latency.samples import FleetState, fleet_states, sampled_at
from apps.ops.latency.scopes import FleetPoint, TimeRange, floor_to
from apps.ops.models import FleetSample
from headrace_wire.latency.store import READABLE_SECONDS

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
KEPT = {FleetSpan.MINUTE: timedelta(days=2), FleetSpan.HOUR: timedelta(days=90)}
BATCH = 30
"""Rows of one statement: SQLite takes 999 values."""
_READABLE = timedelta(seconds=READABLE_SECONDS)
_BEFORE = MINUTE
"""How much earlier the sample may be with which the first one is compared."""

_TOGETHER: dict[str, Aggregate] = {
    f"{name}_together": (Sum if name in SUMS else Max if name in MOSTS else Avg)(name) for name in NAMES
}
"""What `together` does, where the rows are: of months there are many."""


def fleet_roll_up(*, now: datetime | None = None) -> int:
    """Stores the minutes and hours that are over; returns how many rows were written.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    now = now or timezone.now()
    written = 0
    oldest = floor_to(now - _READABLE, MINUTE) + MINUTE
    minute = max(_next(FleetSpan.MINUTE, MINUTE, oldest), oldest)
    while minute + MINUTE <= now:
        written += _rows_store(FleetSpan.MINUTE, minute, _figures_between(minute, minute + MINUTE))
        minute += MINUTE
    first = FleetSample.objects.filter(span=FleetSpan.MINUTE).aggregate(at=Min("at"))["at"]
    if first is not None:
        hour = max(_next(FleetSpan.HOUR, HOUR, first), floor_to(first, HOUR))
        while hour + HOUR <= floor_to(now, MINUTE):
            written += _rows_store(FleetSpan.HOUR, hour, _hour(hour))
            hour += HOUR
    return written


def fleet_expire(*, now: datetime | None = None) -> int:
    """Deletes rows that are older than their span is kept; returns how many."""
    now = now or timezone.now()
    return sum(FleetSample.objects.filter(span=span, at__lt=now - kept).delete()[0] for span, kept in KEPT.items())


def fleet_points(deployment: str | None, worker: str | None, time_range: TimeRange) -> list[FleetPoint]:
    """Returns a point for each step of which there is something.

    Raises:
        redis.exceptions.RedisError: Redis does not answer, and the range reaches beyond what the database has.
    """
    now = timezone.now()
    steps: dict[datetime, dict[datetime, list[Mapping[str, float | None]]]] = defaultdict(lambda: defaultdict(list))
    live_from = max(time_range.start, floor_to(now - _READABLE, MINUTE))
    if time_range.step >= MINUTE:
        is_long = time_range.step > HOUR or now - time_range.start > KEPT[FleetSpan.MINUTE]
        span, length = (FleetSpan.HOUR, HOUR) if is_long else (FleetSpan.MINUTE, MINUTE)
        for at, figures in _stored(span, deployment, worker, time_range):
            steps[time_range.step_of(at)][at].append(figures)
            live_from = max(live_from, at + length)
    for at, figures in _live(deployment, worker, live_from, time_range.end):
        steps[time_range.step_of(at)][at].append(figures)
    return [
        _point(
            step, over_time([figures[0] if len(figures) == 1 else together(figures) for figures in moments.values()])
        )
        for step, moments in sorted(steps.items())
    ]


def _stored(
    span: FleetSpan, deployment: str | None, worker: str | None, time_range: TimeRange
) -> Iterator[tuple[datetime, Figures]]:
    asked = {"worker": worker or "", **({} if deployment is None else {"deployment": deployment})}
    rows = FleetSample.objects.filter(span=span, at__gte=time_range.start, at__lt=time_range.end, **asked).order_by()
    for at, *values in rows.values("at").annotate(**_TOGETHER).values_list("at", *_TOGETHER):
        yield at, dict(zip(NAMES, values, strict=True))


def _live(
    deployment: str | None, worker: str | None, start: datetime, end: datetime
) -> Iterator[tuple[datetime, Figures]]:
    before: FleetState | None = None
    for state in fleet_states(start - _BEFORE, end):
        at = sampled_at(state)
        if at >= start:
            for (name, member), figures in figures_of([state], before).items():
                if member == (worker or "") and deployment in (None, name):
                    yield at, figures
        before = state


def _point(at: datetime, figures: Figures) -> FleetPoint:
    return FleetPoint(at, **figures)  # type: ignore[arg-type]  # only what may be is None


def _next(span: FleetSpan, length: timedelta, otherwise: datetime) -> datetime:
    """Returns the beginning of the span after the newest that is stored."""
    newest: datetime | None = FleetSample.objects.filter(span=span).aggregate(at=Max("at"))["at"]
    return otherwise if newest is None else newest + length


def _figures_between(start: datetime, end: datetime) -> dict[Whose, Figures]:
    states = list(fleet_states(start - _BEFORE, end))
    before = [state for state in states if sampled_at(state) < start]
    return figures_of(states[len(before) :], before[-1] if before else None)


def _hour(start: datetime) -> dict[Whose, Figures]:
    seen: dict[Whose, list[Figures]] = defaultdict(list)
    minutes: set[datetime] = set()
    rows = FleetSample.objects.filter(span=FleetSpan.MINUTE, at__gte=start, at__lt=start + HOUR).order_by()
    for at, deployment, worker, *values in rows.values_list("at", "deployment", "worker", *NAMES):
        minutes.add(at)
        seen[deployment, worker].append(dict(zip(NAMES, values, strict=True)))
    return {whose: over_part(figures, len(minutes)) for whose, figures in seen.items()}


def _rows_store(span: FleetSpan, at: datetime, rows: Mapping[Whose, Figures]) -> int:
    made: Iterable[FleetSample] = [
        FleetSample(span=span, at=at, deployment=deployment, worker=worker, **figures)
        for (deployment, worker), figures in rows.items()
    ]
    FleetSample.objects.bulk_create(
        made,
        batch_size=BATCH,
        update_conflicts=True,
        unique_fields=["span", "worker", "deployment", "at"],
        update_fields=list(NAMES),
    )
    return len(rows)
