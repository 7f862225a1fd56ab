"""Hours of workers for tests: as samples in the database, and summed up without one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.ops.costs.figures import HourSums
from apps.ops.enums import FleetSpan
from apps.ops.models import FleetSample

HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Hour:
    """What one worker was like in one hour."""

    there: float | None = 1.0
    """Share of the hour in which it was there; None as in rows from before that was noted."""
    ready: float = 1.0
    running: float = 0.0
    held: float = 0.0
    limit: float | None = 8.0
    tokens: float = 0.0
    """Per second."""
    watts: float | None = None
    has_gpu: bool = False

    @property
    def weight(self) -> float:
        return 1.0 if self.there is None else self.there


def sums_of(hours: Iterable[Hour]) -> HourSums:
    """What the database is asked for, by other means."""
    sums = HourSums()
    for one in hours:
        has_limit, has_power = one.limit is not None, one.watts is not None
        sums = sums.plus(
            one.weight * value
            for value in (
                1.0,
                one.ready,
                max(0.0, 1.0 - one.running - one.held),
                one.running,
                float(has_limit),
                one.running * has_limit,
                one.limit or 0.0,
                one.tokens,
                float(has_power),
                one.tokens * has_power,
                one.watts or 0.0,
                float(one.has_gpu),
                one.tokens * one.has_gpu,
            )
        )
    return sums


def seed(hours: Mapping[tuple[str, str], Sequence[Hour]], start: datetime) -> None:
    """Stores hours of workers (deployment and name) from `start` on, and those of their deployments."""
    rows: list[FleetSample] = []
    together: dict[tuple[str, datetime], FleetSample] = {}
    for (deployment, worker), some in hours.items():
        for number, one in enumerate(some):
            at = start + number * HOUR
            rows.append(
                FleetSample(
                    span=FleetSpan.HOUR, at=at, deployment=deployment, worker=worker, workers=one.ready,
                    registered=one.there, running=one.running, held=one.held, batch_limit=one.limit,
                    tokens=one.tokens, gpu_power_watts=one.watts, gpu_utilization=0.5 if one.has_gpu else None,
                )
            )  # fmt: skip
            whole = together.setdefault(
                (deployment, at),
                FleetSample(span=FleetSpan.HOUR, at=at, deployment=deployment, registered=0.0),
            )
            whole.registered = (whole.registered or 0.0) + one.weight
            whole.running += one.weight * one.running
            whole.held += one.weight * one.held
            whole.tokens += one.weight * one.tokens
    FleetSample.objects.bulk_create([*rows, *together.values()], batch_size=30)
