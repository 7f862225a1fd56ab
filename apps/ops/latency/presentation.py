"""From points to what the latency page's script draws: one list of numbers for each series (`panels` says which)."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from apps.ops.latency.goals import Goal
from apps.ops.latency.panels import QUANTILES
from apps.ops.latency.scopes import FleetPoint, LatencyPoint, TimeRange
from headrace_wire.latency.measures import PHASES, Measure, Tally
from headrace_wire.latency.store import SLOT_SECONDS
from headrace_wire.latency.summary import Summary

Number = int | float | None
Json = dict[str, Any]

_SHARES = tuple(QUANTILES.values())
_NAMES = tuple(QUANTILES)
_FLEET = tuple(name for name in FleetPoint.__slots__ if name != "at")
_RATES = (Tally.REQUESTS, Tally.TOKENS, Tally.STALLS)
_RARE = (Tally.DIVERTED, Tally.TURNED_AWAY)
"""Told only of a time that has any."""
_PARTS = (
    ("share.errors", Tally.ERRORS, Tally.REQUESTS),
    ("share.timeouts", Tally.TIMEOUTS, Tally.REQUESTS),
    ("share.cached", Tally.CACHED_TOKENS, Tally.PROMPT_TOKENS),
)
FILED_LATE_SECONDS = SLOT_SECONDS
TELLING_SECONDS = 300.0
_FIGURES = 4
"""Digits of a number; histograms are exact to two."""


def numbers_json(
    time_range: TimeRange, points: Sequence[LatencyPoint], fleet: Sequence[FleetPoint] | None, *, now: datetime
) -> Json:
    """Returns the series of one range and its totals; `fleet` is None for those who do not see it."""
    step = time_range.step.total_seconds()
    shown = [point for point in points if point.at < now]
    total = Summary()
    for point in shown:
        total.merge(point)
    series = columns([_values(point, _seconds(point.at, step, now)) for point in shown])
    totals = _values(total, max(1.0, (min(time_range.end, now) - time_range.start).total_seconds()))
    for tally in _RARE:
        if not total.tally(tally):
            series.pop(f"count.{tally}", None)
    if fleet is not None:
        by_time = {point.at: point for point in fleet}
        rows = [by_time.get(point.at) for point in shown]
        for name in _FLEET:
            column = [None if row is None else rounded(getattr(row, name)) for row in rows]
            series[f"fleet.{name}"] = column
            totals[f"fleet.{name}"] = next((value for value in reversed(column) if value is not None), None)
    return {
        "start": time_range.start.timestamp(),
        "end": time_range.end.timestamp(),
        "step": step,
        "at": [int(point.at.timestamp()) for point in shown],
        "series": series,
        "totals": totals,
    }


def goals_json(goals: Iterable[Goal], error_share: float | None = None) -> dict[str, float]:
    """Returns the goals by series."""
    names = {share: name for name, share in QUANTILES.items()}
    told = {f"{goal.measure}.{names[goal.quantile]}": goal.seconds for goal in goals if goal.quantile in names}
    return told if error_share is None else {**told, "share.errors": round(error_share, 6)}


def _seconds(at: datetime, step: float, now: datetime) -> float | None:
    """Returns what to divide counts by: of a step that is not over what has passed of it, once that says something.

    Gateways file what they measured up to `FILED_LATE_SECONDS` later.
    """
    passed = (now - at).total_seconds() - FILED_LATE_SECONDS
    if passed >= step:
        return step
    return passed if passed >= TELLING_SECONDS else None


def _values(summary: Summary, seconds: float | None) -> dict[str, Number]:
    values: dict[str, Number] = {}
    for measure, histogram in summary.histograms.items():
        if not histogram.counts:
            continue
        for name, quantile in zip(_NAMES, histogram.quantiles(_SHARES), strict=True):
            values[f"{measure}.{name}"] = rounded(quantile)
        values[f"{measure}.mean"] = rounded(histogram.mean)
    values |= _phases(summary)
    requests = summary.tally(Tally.REQUESTS)
    values["count.requests"] = requests
    for tally in _RARE:
        values[f"count.{tally}"] = summary.tally(tally)
    for tally in _RATES:
        values[f"rate.{tally}"] = rounded(summary.tally(tally) / seconds) if seconds is not None else None
    for name, part, whole in _PARTS:
        some = summary.tally(part)
        if count := max(summary.tally(whole), some):  # what could not begin is an error and no request
            values[name] = rounded(some / count)
    return values


def _phases(summary: Summary) -> dict[str, Number]:
    """Returns what each phase adds to the mean time to first token, so that they add up to it."""
    whole = summary.histograms.get(Measure.TTFT)
    count = whole.count if whole is not None else 0
    if not count:
        return {}
    return {
        f"{phase}.share": rounded(histogram.sum_seconds / count)
        for phase in PHASES
        if (histogram := summary.histograms.get(phase)) is not None
    }


def columns(rows: Sequence[dict[str, Number]]) -> dict[str, list[Number]]:
    """Returns rows as columns; what a row lacks is None there."""
    names = {name: None for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}


def rounded(value: float | None) -> Number:
    """Returns it as it is told: nobody reads more digits."""
    if value is None or value == 0:
        return value
    return float(f"{value:.{_FIGURES}g}")


def before_json(numbers: Json, shift: timedelta) -> Json:
    """Returns another range's numbers as what is drawn beside: without its frame, with how far it is moved."""
    return {"shift": shift.total_seconds(), **{name: numbers[name] for name in ("at", "series", "totals")}}
