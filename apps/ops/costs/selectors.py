"""What the page of costs shows: points for its charts, rows for its tables. A fixed number of queries each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from apps.deployments.autoscale.replay import START_SECONDS
from apps.deployments.models import Worker
from apps.ops.costs import readings
from apps.ops.costs.figures import (
    SECONDS,
    HourSums,
    Smaller,
    Terms,
    ToZero,
    Use,
    Used,
    costs_per_token,
    gaps_of,
    smaller_models,
    to_zero,
    use_of,
)
from apps.ops.costs.readings import Known
from apps.ops.latency.scopes import TimeRange

USUAL_IDLE_SECONDS = 900.0
"""As a new autoscale policy has it: so long without a request until the last worker ends."""
_NOTHING = Terms()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPoint:
    """One step, or all of them."""

    at: datetime
    use: Use = field(default_factory=Use)
    requests: int = 0
    charged_micros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCost:
    """One worker's hours."""

    deployment: str
    worker: str
    name: str
    """For people; the incarnation where the worker ended long ago."""
    use: Use


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentCost:
    """One deployment's hours, and what it would have cost to end its workers while nobody asked."""

    name: str
    use: Use
    terms: Terms
    requests: int
    tokens: int
    """Computed ones, of the ledger."""
    charged_micros: int
    per_token: float | None
    to_zero: ToZero
    idle_seconds: float
    start_seconds: float
    is_start_measured: bool

    @property
    def to_zero_saved(self) -> float | None:
        """In money, without power."""
        return None if self.terms.worker_hour is None else self.to_zero.hours * self.terms.worker_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantCost:
    """What one tenant was charged, and its share of what was paid."""

    tenant_ref: str
    name: str
    requests: int
    tokens: int
    charged_micros: int
    share: float | None
    """Of what its deployments cost, by computed tokens; None where nothing is known of one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """All tables."""

    time_range: TimeRange
    hours_sampled: int
    deployments: list[DeploymentCost]
    workers: list[WorkerCost]
    tenants: list[TenantCost]
    smaller: list[Smaller]

    @property
    def is_power_known(self) -> bool:
        """Whether a worker measured power."""
        return any(one.use.powered_hours for one in self.deployments)

    @property
    def is_cost_known(self) -> bool:
        """Whether something is known of what a deployment cost."""
        return any(one.use.costed_hours for one in self.deployments)


def cost_points(time_range: TimeRange, deployment: str | None, known: Mapping[str, Known]) -> list[CostPoint]:
    """Returns a point for each step of the range, also where there was nothing; two queries."""
    sums: dict[tuple[datetime, str], HourSums] = defaultdict(HourSums)
    for at, name, some in readings.sums_by_hour(time_range, deployment):
        key = time_range.step_of(at), name
        sums[key] = sums[key].plus(some)
    uses: dict[datetime, Use] = defaultdict(Use)
    for (at, name), one in sums.items():
        uses[at] += use_of(one, _terms(known, name))
    charged: dict[datetime, list[int]] = defaultdict(lambda: [0, 0])
    for used in readings.used_by_time(time_range, deployment):
        step = charged[time_range.step_of(used.start_at)]
        step[0] += used.requests
        step[1] += used.cost_micros
    return [
        CostPoint(at=at, use=uses[at], requests=charged[at][0], charged_micros=charged[at][1])
        for at in time_range.steps()
    ]


def cost_total(points: Iterable[CostPoint], at: datetime) -> CostPoint:
    """Returns all of them as one."""
    some = list(points)
    return CostPoint(
        at=at,
        use=sum((point.use for point in some), Use()),
        requests=sum(point.requests for point in some),
        charged_micros=sum(point.charged_micros for point in some),
    )


def cost_report(time_range: TimeRange, deployment: str | None) -> CostReport:
    """Returns all tables, of one deployment or of all; eight queries.

    A smaller model is looked for among all deployments, whichever is asked for.
    """
    known = readings.known_deployments()
    rows = {row.pk: row for row in readings.worker_rows()}
    used = readings.used_by_tenants(time_range)
    workers = [
        _worker(name, worker, rows.get(worker), use_of(sums, _terms(known, name)))
        for name, worker, sums in readings.sums_by_worker(time_range)
    ]
    uses: dict[str, Use] = defaultdict(Use)
    for one in workers:
        uses[one.deployment] += one.use
    costs = {name: use.cost if use.priced_hours else None for name, use in uses.items()}
    per_token = costs_per_token(costs, used)
    deployments = _deployments(known, uses, used, per_token, rows.values(), time_range)
    smaller = smaller_models(used, per_token, readings.offered_to(known))

    def is_asked(name: str) -> bool:
        return deployment in (None, name)

    return CostReport(
        time_range=time_range,
        hours_sampled=readings.hours_sampled(time_range),
        deployments=[one for one in deployments if is_asked(one.name)],
        workers=sorted(
            (one for one in workers if is_asked(one.deployment)), key=lambda one: (one.deployment, -one.use.hours)
        ),
        tenants=_tenants([one for one in used if is_asked(one.deployment)], per_token),
        smaller=[one for one in smaller if is_asked(one.deployment)],
    )


def _terms(known: Mapping[str, Known], name: str) -> Terms:
    return known[name].terms if name in known else _NOTHING


def _worker(deployment: str, worker: str, row: Worker | None, use: Use) -> WorkerCost:
    return WorkerCost(deployment=deployment, worker=worker, name=worker if row is None else str(row), use=use)


def _deployments(
    known: Mapping[str, Known],
    uses: Mapping[str, Use],
    used: Iterable[Used],
    per_token: Mapping[str, float],
    rows: Iterable[Worker],
    time_range: TimeRange,
) -> list[DeploymentCost]:
    """Returns all that had workers or requests, by name."""
    requests: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in used:
        for place, count in enumerate((one.requests, one.tokens, one.charged_micros)):
            requests[one.deployment][place] += count
    starts = _starts(rows)
    quiet = readings.quiet_hours(time_range)
    found = []
    for name in sorted({*uses, *requests}):
        idle = known[name].idle_seconds if name in known else None
        idle_seconds = USUAL_IDLE_SECONDS if idle is None else idle
        start_seconds = starts.get(name, START_SECONDS)
        found.append(
            DeploymentCost(
                name=name,
                use=uses.get(name, Use()),
                terms=_terms(known, name),
                requests=requests[name][0],
                tokens=requests[name][1],
                charged_micros=requests[name][2],
                per_token=per_token.get(name),
                to_zero=to_zero(gaps_of(quiet.get(name, [])), after_hours=(idle_seconds + start_seconds) / SECONDS),
                idle_seconds=idle_seconds,
                start_seconds=start_seconds,
                is_start_measured=name in starts,
            )
        )
    return found


def _starts(rows: Iterable[Worker]) -> dict[str, float]:
    """Returns the longest cold start of each deployment's workers, where one was measured."""
    starts: dict[str, float] = {}
    for row in rows:
        if row.cold_start_seconds > 0:
            starts[row.deployment_name] = max(starts.get(row.deployment_name, 0.0), row.cold_start_seconds)
    return starts


def _tenants(used: Iterable[Used], per_token: Mapping[str, float]) -> list[TenantCost]:
    """Returns tenants, those who were charged most first."""
    parts: dict[str, list[Used]] = defaultdict(list)
    for one in used:
        parts[one.tenant_ref].append(one)
    tenants = [
        TenantCost(
            tenant_ref=ref,
            name=max(one.tenant for one in some),
            requests=sum(one.requests for one in some),
            tokens=sum(one.tokens for one in some),
            charged_micros=sum(one.charged_micros for one in some),
            share=_share(some, per_token),
        )
        for ref, some in parts.items()
    ]
    return sorted(tenants, key=lambda one: (-one.charged_micros, -one.tokens, one.name))


def _share(used: Iterable[Used], per_token: Mapping[str, float]) -> float | None:
    computed = [one for one in used if one.tokens]
    if not computed or any(one.deployment not in per_token for one in computed):
        return None
    return sum(per_token[one.deployment] * one.tokens for one in computed)
