"""Error budgets and burn rates, by the SRE workbook (sre.google/workbook/alerting-on-slos).

A burn rate of 1 spends the whole budget in exactly its window; 14.4 spends 2 % of thirty days' budget in an hour.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from apps.ops.latency.scopes import LatencyScope, TimeRange
from apps.ops.latency.selectors import latency_total
from apps.ops.models import ServiceObjective
from apps.ops.objectives.enums import Indicator
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.summary import Summary


class TotalOf(Protocol):
    """Gives what a deployment's requests took in the last so many seconds: all of them, or those of a tenant."""

    def __call__(self, deployment: str, seconds: float, tenant_id: UUID | None = None, /) -> Summary:
        """Reads, or returns what was read."""


@dataclass(frozen=True, slots=True)
class Spent:
    """How many requests there were, and how many of them were bad."""

    requests: float
    bad: float

    @property
    def bad_share(self) -> float:
        """0 where there was nothing."""
        return self.bad / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The error budget of one objective over its window."""

    spent: Spent
    allowed: float
    """Requests that may be bad, of as many as there were."""

    @property
    def left(self) -> float:
        """The share that is left: 1 untouched, 0 used up, negative overspent."""
        return 1.0 - self.spent.bad / self.allowed if self.allowed else 1.0


def spent_of(objective: ServiceObjective, summary: Summary) -> Spent:
    """Returns what an objective counts of a time. A duration counts where it was measured."""
    if objective.indicator == Indicator.ERRORS:
        requests = summary.tally(Tally.REQUESTS)
        return Spent(requests, min(summary.tally(Tally.ERRORS), requests))
    histogram = summary.histograms.get(Measure(objective.indicator))
    if histogram is None or objective.goal_seconds is None:
        return Spent(0, 0)
    return Spent(histogram.count, histogram.count_above(objective.goal_seconds))


def budget_of(objective: ServiceObjective, total_of: TotalOf) -> Budget:
    """Returns the budget of the window that ends now."""
    spent = spent_of(objective, total_of(objective.deployment.name, objective.window_days * 86_400.0))
    return Budget(spent, spent.requests * objective.budget_share)


def burn_rate(objective: ServiceObjective, seconds: float, total_of: TotalOf) -> float:
    """Returns how fast the budget went in the last so many seconds: 1 is as fast as it may."""
    spent = spent_of(objective, total_of(objective.deployment.name, seconds))
    return spent.bad_share / objective.budget_share


def totals_until(now: datetime) -> TotalOf:
    """Returns a reader of totals up to now that reads each only once.

    It raises `redis.exceptions.RedisError` where Redis does not answer.
    """
    known: dict[tuple[str, float, UUID | None], Summary] = {}

    def total_of(deployment: str, seconds: float, tenant_id: UUID | None = None, /) -> Summary:
        asked = (deployment, seconds, tenant_id)
        if asked not in known:
            time_range = TimeRange.of(now - timedelta(seconds=seconds), now, now=now)
            known[asked] = latency_total(LatencyScope(deployment=deployment, tenant_id=tenant_id), time_range)
        return known[asked]

    return total_of
