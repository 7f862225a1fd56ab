"""What rules look at: the value of a rule for each of its subjects, now."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from apps.deployments.models import ModelDeployment
from apps.ops.alerts.enums import FleetFigure, Signal
from apps.ops.alerts.fleet_figures import figures_read
from apps.ops.models import AlertRule, ServiceObjective
from apps.ops.objectives.budgets import TotalOf, burn_rate, totals_until
from headrace_wire.latency.measures import Measure, Tally


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule sees of one subject."""

    subject: str
    deployment: str
    value: float | None
    """None: there is nothing to see (no requests, no such worker), which is good."""


class Readings:
    """Reads for all rules of one run, each thing once."""

    def __init__(self, now: datetime, deployments: Iterable[ModelDeployment]) -> None:
        """`deployments`: the active ones."""
        self._at = now
        self._deployments = {row.pk: row.name for row in deployments}
        self._total_of: TotalOf = totals_until(now)
        self._figures: Mapping[str, Mapping[FleetFigure, float]] | None = None

    def of(self, rule: AlertRule) -> list[Reading]:
        """Returns a reading for each subject of a rule.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        read = {
            Signal.PERCENTILE: self._percentile,
            Signal.SHARE: self._share,
            Signal.FLEET: self._figure,
        }.get(Signal(rule.signal))
        if read is None:
            return list(self._burn_rates(rule))
        whose = f" ({rule.tenant.name})" if rule.tenant is not None else ""
        return [Reading(name + whose, name, read(rule, name)) for name in self._names(rule)]

    def _names(self, rule: AlertRule) -> list[str]:
        if rule.deployment_id is None:
            return list(self._deployments.values())
        name = self._deployments.get(rule.deployment_id)
        return [name] if name is not None else []

    def _percentile(self, rule: AlertRule, deployment: str) -> float | None:
        summary = self._total_of(deployment, rule.window_seconds, rule.tenant_id)
        histogram = summary.histograms.get(Measure(rule.duration))
        if histogram is None or rule.percentile is None:
            return None
        return histogram.quantile(rule.percentile / 100)

    def _share(self, rule: AlertRule, deployment: str) -> float | None:
        summary = self._total_of(deployment, rule.window_seconds, rule.tenant_id)
        happened, requests = summary.tally(Tally(rule.happening)), summary.tally(Tally.REQUESTS)
        if not requests:
            return 1.0 if happened else None
        return min(happened / requests, 1.0)

    def _figure(self, rule: AlertRule, deployment: str) -> float | None:
        if self._figures is None:
            self._figures = figures_read(self._deployments.values(), self._at)
        return self._figures.get(deployment, {}).get(FleetFigure(rule.figure))

    def _burn_rates(self, rule: AlertRule) -> Iterator[Reading]:
        """The lower one of both times: it burns as long as both do."""
        objectives = ServiceObjective.objects.filter(deployment__name__in=self._names(rule))
        for objective in objectives.select_related("deployment"):
            windows = (rule.window_seconds, rule.short_window_seconds or rule.window_seconds)
            rate = min(burn_rate(objective, seconds, self._total_of) for seconds in windows)
            yield Reading(str(objective), objective.deployment.name, rate)
