"""What the latency page holds against the numbers."""

from dataclasses import dataclass

from apps.ops.models import ServiceObjective
from apps.ops.objectives.enums import Indicator
from headrace_wire.latency.measures import Measure


@dataclass(frozen=True, slots=True)
class Goal:
    """A quantile of a measure that is not to be exceeded."""

    measure: Measure
    quantile: float
    seconds: float


USUAL = (
    Goal(Measure.TTFT, 0.50, 0.2),
    Goal(Measure.TTFT, 0.95, 0.5),
    Goal(Measure.TTFT, 0.99, 2.0),
)
"""Where a deployment has none of its own."""


_DURATIONS = frozenset(Measure)


def goals_for(deployment: str | None) -> tuple[Goal, ...]:
    """Returns the goals of a deployment by its name: its objectives, and the usual ones where none is about TTFT.

    None: the usual ones, for all deployments together.
    """
    if deployment is None:
        return USUAL
    rows = ServiceObjective.objects.filter(deployment__name=deployment).order_by("indicator", "target_percent")
    own = tuple(
        Goal(Measure(row.indicator), row.target_percent / 100, row.goal_seconds)
        for row in rows
        if row.indicator in _DURATIONS and row.goal_seconds is not None
    )
    return own if any(goal.measure is Measure.TTFT for goal in own) else (*USUAL, *own)


def error_goal_for(deployment: str | None) -> float | None:
    """Returns the share of streams that may fail by a deployment's strictest objective for errors, where it has one."""
    if deployment is None:
        return None
    rows = ServiceObjective.objects.filter(deployment__name=deployment, indicator=Indicator.ERRORS)
    strictest = rows.order_by("-target_percent").values_list("target_percent", flat=True).first()
    return None if strictest is None else 1 - strictest / 100
