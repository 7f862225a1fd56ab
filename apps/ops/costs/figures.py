"""What workers' hours were used for and cost, and what would have cost less: arithmetic on sums of hours.

Hours are worker-hours: two workers for an hour are two. Money is in the unit of the prices and a float: nobody is
billed by it. What is not known is None, and never zero.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Self

HOUR = timedelta(hours=1)
SECONDS = 3600.0


class HourSums(NamedTuple):
    """Sums of hourly samples of workers, each weighed by the share of its hour in which its worker was there."""

    hours: float = 0.0
    ready_hours: float = 0.0
    idle_hours: float = 0.0
    """In which nothing ran, at least: an hour with a mean of a quarter of a stream had three quarters without one."""
    stream_hours: float = 0.0
    placed_hours: float = 0.0
    """Of the hours those in which the worker's limit of streams was noted."""
    placed_stream_hours: float = 0.0
    place_hours: float = 0.0
    token_hours: float = 0.0
    """Tokens per second, times hours."""
    powered_hours: float = 0.0
    """Of the hours those in which power was measured."""
    powered_token_hours: float = 0.0
    watt_hours: float = 0.0
    gpu_hours: float = 0.0
    """Of the hours those in which the worker reported GPUs."""
    gpu_token_hours: float = 0.0

    def plus(self, others: Iterable[float | None]) -> "HourSums":
        """Returns the sums of both; None, as databases say of no rows, is nothing."""
        return HourSums(*(mine + (other or 0.0) for mine, other in zip(self, others, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What has to be known of a deployment beside its samples."""

    places: int | None = None
    """Streams that a worker can run, for hours in which no limit was noted."""
    capacity: float | None = None
    """Tokens per second of the busiest hour that one worker had."""
    gpus: int = 1
    """That a worker takes where it takes any."""
    worker_hour: float | None = None
    kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What hours of one worker, of one deployment or of everything were used for. All fields add up."""

    hours: float = 0.0
    ready_hours: float = 0.0
    idle_hours: float = 0.0
    stream_hours: float = 0.0
    """Of hours with known places."""
    place_hours: float = 0.0
    tokens: float = 0.0
    possible_tokens: float = 0.0
    powered_hours: float = 0.0
    powered_tokens: float = 0.0
    kwh: float = 0.0
    gpu_hours: float = 0.0
    """Times GPUs: of a worker on two of them an hour counts twice."""
    gpu_tokens: float = 0.0
    costed_hours: float = 0.0
    """Hours of whose cost something is known."""
    cost: float = 0.0
    priced_hours: float = 0.0
    """Hours that have a price themselves, not only their power."""
    idle_cost: float = 0.0

    def __add__(self, other: Self) -> "Use":
        return Use(**{name: getattr(self, name) + getattr(other, name) for name in _FIELDS})

    @property
    def busy_hours(self) -> float:
        """Hours in which something ran, at most."""
        return max(0.0, self.hours - self.idle_hours)

    @property
    def ready_share(self) -> float | None:
        """Of the hours those in which the worker took requests, 0 to 1."""
        return _ratio(self.ready_hours, self.hours)

    @property
    def idle_share(self) -> float | None:
        """Of the hours, 0 to 1."""
        return _ratio(self.idle_hours, self.hours)

    @property
    def places_share(self) -> float | None:
        """Mean of places that were taken; above 1 only where a limit was lowered while more ran."""
        return _ratio(self.stream_hours, self.place_hours)

    @property
    def capacity_share(self) -> float | None:
        """Tokens of those that workers would have made that were always as busy as in their busiest hour."""
        return _ratio(self.tokens, self.possible_tokens)

    @property
    def tokens_per_hour(self) -> float | None:
        """Per worker-hour."""
        return _ratio(self.tokens, self.hours)

    @property
    def tokens_per_gpu_hour(self) -> float | None:
        """Of workers that reported GPUs."""
        return _ratio(self.gpu_tokens, self.gpu_hours)

    @property
    def tokens_per_kwh(self) -> float | None:
        """Of hours in which power was measured."""
        return _ratio(self.powered_tokens, self.kwh)

    @property
    def powered_share(self) -> float | None:
        """Of the hours those in which power was measured, 0 to 1."""
        return _ratio(self.powered_hours, self.hours)

    @property
    def known_kwh(self) -> float | None:
        """None: no power was measured."""
        return self.kwh if self.powered_hours else None

    @property
    def known_cost(self) -> float | None:
        """None: nothing is known of it."""
        return self.cost if self.costed_hours else None

    @property
    def known_idle_cost(self) -> float | None:
        """Without power: what an idle hour of a worker costs is its price."""
        return self.idle_cost if self.priced_hours else None

    @property
    def costed_share(self) -> float | None:
        """Of the hours those of whose cost something is known, 0 to 1."""
        return _ratio(self.costed_hours, self.hours)


_FIELDS = tuple(Use.__dataclass_fields__)


def use_of(sums: HourSums, terms: Terms) -> Use:
    """Returns what the hours of one deployment's workers were used for."""
    stream_hours, place_hours = sums.placed_stream_hours, sums.place_hours
    if terms.places is not None:
        stream_hours += max(0.0, sums.stream_hours - sums.placed_stream_hours)
        place_hours += max(0.0, sums.hours - sums.placed_hours) * terms.places
    is_priced, has_kwh = terms.worker_hour is not None, terms.kwh is not None
    worker_hour, kwh = terms.worker_hour or 0.0, sums.watt_hours / 1000
    return Use(
        hours=sums.hours,
        ready_hours=sums.ready_hours,
        idle_hours=sums.idle_hours,
        stream_hours=stream_hours,
        place_hours=place_hours,
        tokens=sums.token_hours * SECONDS,
        possible_tokens=(terms.capacity or 0.0) * SECONDS * sums.hours,
        powered_hours=sums.powered_hours,
        powered_tokens=sums.powered_token_hours * SECONDS,
        kwh=kwh,
        gpu_hours=sums.gpu_hours * terms.gpus,
        gpu_tokens=sums.gpu_token_hours * SECONDS,
        costed_hours=sums.hours if is_priced else sums.powered_hours if has_kwh else 0.0,
        cost=sums.hours * worker_hour + kwh * (terms.kwh or 0.0),
        priced_hours=sums.hours if is_priced else 0.0,
        idle_cost=sums.idle_hours * worker_hour,
    )


# ---- scale to zero


@dataclass(frozen=True, slots=True)
class ToZero:
    """What ending idle workers would have saved."""

    gaps: int = 0
    """The first request after each waits for a start."""
    hours: float = 0.0


def gaps_of(quiet: Iterable[tuple[datetime, float]]) -> Iterator[list[float]]:
    """Yields the gaps of quiet hours, each as its workers hour by hour; `quiet` are such hours, in order."""
    gap: list[float] = []
    before: datetime | None = None
    for at, workers in quiet:
        if before is not None and at - before != HOUR:
            yield gap
            gap = []
        gap.append(workers)
        before = at
    if gap:
        yield gap


def to_zero(gaps: Iterable[Sequence[float]], *, after_hours: float) -> ToZero:
    """Returns what would have been saved of gaps, had workers ended so long after their beginning.

    `after_hours` has the wait until workers end and the start of the next one: a gap that is no longer saves nothing.
    """
    count, hours = 0, 0.0
    for gap in gaps:
        saved = sum(workers * min(1.0, max(0.0, end - after_hours)) for end, workers in enumerate(gap, start=1))
        if saved > 0:
            count, hours = count + 1, hours + saved
    return ToZero(count, hours)


# ---- per token


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a tenant used of a deployment."""

    tenant_ref: str
    tenant: str
    deployment: str
    requests: int
    tokens: int
    """That had to be computed: of prompts those that no cache had, and of answers."""
    charged_micros: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """What a tenant's tokens would have cost at another deployment."""

    tenant: str
    deployment: str
    other: str
    tokens: int
    cost: float
    other_cost: float

    @property
    def saved(self) -> float:
        """The difference."""
        return self.cost - self.other_cost


def costs_per_token(costs: Mapping[str, float | None], used: Iterable[Used]) -> dict[str, float]:
    """Returns what a computed token cost at each deployment of which both are known, idle hours included."""
    tokens: dict[str, int] = {}
    for one in used:
        tokens[one.deployment] = tokens.get(one.deployment, 0) + one.tokens
    return {name: cost / tokens[name] for name, cost in costs.items() if cost is not None and tokens.get(name, 0) > 0}


def smaller_models(
    used: Iterable[Used], per_token: Mapping[str, float], offered: Mapping[str, Collection[str] | None]
) -> list[Smaller]:
    """Returns for each tenant and deployment the cheapest other one that the tenant sees, the largest savings first.

    `offered` has the deployments that may be used, by name, and who sees them: ids of tenants, or None for everybody.
    """
    found = []
    for one in used:
        own = per_token.get(one.deployment)
        if own is None or not one.tokens:
            continue
        others = {
            name: per_token[name]
            for name, tenants in offered.items()
            if name in per_token and name != one.deployment and (tenants is None or one.tenant_ref in tenants)
        }
        other = min(others, key=lambda name: (others[name], name), default=None)
        if other is not None and others[other] < own:
            found.append(
                Smaller(
                    tenant=one.tenant,
                    deployment=one.deployment,
                    other=other,
                    tokens=one.tokens,
                    cost=own * one.tokens,
                    other_cost=others[other] * one.tokens,
                )
            )
    return sorted(found, key=lambda one: (-one.saved, one.tenant, one.deployment))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
