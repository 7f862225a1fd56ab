"""Reads of what costs are computed from: samples, prices, starts, who sees what, and the ledger. One query each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import prod
from typing import Any

from django.db.models import Aggregate, Count, F, Max, Q, Sum, Value
from django.db.models.functions import Coalesce, Greatest

from apps.deployments.models import ModelDeployment, Worker
from apps.ops.costs.figures import HourSums, Terms, Used
from apps.ops.enums import FleetSpan
from apps.ops.latency.scopes import TimeRange
from apps.ops.models import FleetSample
from apps.usage.enums import Bucket, Group
from apps.usage.selectors import UsageSum, usage_sums_of_all, usage_totals_of_all

_HAS_LIMIT, _HAS_POWER = Q(batch_limit__isnull=False), Q(gpu_power_watts__isnull=False)
_HAS_GPU = Q(gpu_utilization__isnull=False)
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_THERE = F("there")
_SUMS: dict[str, Aggregate] = {
    "hours": Sum(_THERE),
    "ready_hours": Sum(_THERE * F("workers")),
    "idle_hours": Sum(_THERE * Greatest(Value(0.0), Value(1.0) - F("running") - F("held"))),
    "stream_hours": Sum(_THERE * F("running")),
    "placed_hours": Sum(_THERE, filter=_HAS_LIMIT),
    "placed_stream_hours": Sum(_THERE * F("running"), filter=_HAS_LIMIT),
    "place_hours": Sum(_THERE * F("batch_limit")),
    "token_hours": Sum(_THERE * F("tokens")),
    "powered_hours": Sum(_THERE, filter=_HAS_POWER),
    "powered_token_hours": Sum(_THERE * F("tokens"), filter=_HAS_POWER),
    "watt_hours": Sum(_THERE * F("gpu_power_watts")),
    "gpu_hours": Sum(_THERE, filter=_HAS_GPU),
    "gpu_token_hours": Sum(_THERE * F("tokens"), filter=_HAS_GPU),
}
"""By `HourSums`' fields, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A deployment as it is now."""

    terms: Terms
    is_active: bool
    idle_seconds: float | None
    """Of its autoscale policy: how long without a request until its last worker ends."""
    is_restricted: bool


def known_deployments() -> dict[str, Known]:
    """Returns all deployments by name, inactive ones too, in two queries."""
    capacities = _capacities()
    rows: Any = ModelDeployment.objects.order_by("name").values_list(
        *("name", "max_num_seqs", "worker_hour_cost", "kwh_cost", "is_active", "is_restricted"),
        *("engine_args", "autoscale_policy__idle_seconds"),
    )
    return {
        name: Known(
            terms=Terms(
                places=places,
                capacity=capacities.get(name),
                gpus=_gpus(engine_args),
                worker_hour=None if worker_hour is None else float(worker_hour),
                kwh=None if kwh is None else float(kwh),
            ),
            is_active=is_active,
            is_restricted=is_restricted,
            idle_seconds=idle_seconds,
        )
        for name, places, worker_hour, kwh, is_active, is_restricted, engine_args, idle_seconds in rows
    }


def offered_to(known: dict[str, Known]) -> dict[str, set[str] | None]:
    """Returns the active deployments, and the ids of the tenants that see them: None for all of them."""
    through: Any = ModelDeployment.visible_tenants.through
    chosen: dict[str, set[str]] = {}
    for name, tenant_id in through.objects.values_list("modeldeployment__name", "tenant_id"):
        chosen.setdefault(name, set()).add(tenant_id.hex)
    seen_by = {name: chosen.get(name, set()) if one.is_restricted else None for name, one in known.items()}
    return {name: tenants for name, tenants in seen_by.items() if known[name].is_active}


def sums_by_worker(time_range: TimeRange) -> Iterator[tuple[str, str, HourSums]]:
    """Yields deployment, worker and what its hours were used for."""
    rows = _worker_hours(time_range).order_by("deployment", "worker").values("deployment", "worker").annotate(**_SUMS)
    for deployment, worker, *sums in rows.values_list("deployment", "worker", *_SUMS):
        yield deployment, worker, HourSums().plus(sums)


def sums_by_hour(time_range: TimeRange, deployment: str | None) -> Iterator[tuple[datetime, str, list[float | None]]]:
    """Yields hour, deployment and what the hour was used for, as `HourSums.plus` takes it."""
    rows = _worker_hours(time_range).order_by()
    if deployment is not None:
        rows = rows.filter(deployment=deployment)
    found = rows.values("at", "deployment").annotate(**_SUMS).values_list("at", "deployment", *_SUMS)
    for at, name, *sums in found:
        yield at, name, sums


def hours_sampled(time_range: TimeRange) -> int:
    """Returns in how many hours there was a sample of any deployment."""
    rows = FleetSample.objects.filter(span=FleetSpan.HOUR, worker="", at__gte=time_range.start, at__lt=time_range.end)
    return int(rows.aggregate(hours=Count("at", distinct=True))["hours"])


def quiet_hours(time_range: TimeRange) -> dict[str, list[tuple[datetime, float]]]:
    """Returns by deployment the hours in which it had workers and made no token, nobody waited and no stream was held.

    What workers make to keep warm counts nowhere as a token.
    """
    rows = FleetSample.objects.filter(
        span=FleetSpan.HOUR,
        worker="",
        at__gte=time_range.start,
        at__lt=time_range.end,
        tokens=0.0,
        held=0.0,
        waiting_most=0.0,
    )
    found = rows.annotate(there=Coalesce("registered", "workers")).filter(there__gt=0.0).order_by("deployment", "at")
    quiet: dict[str, list[tuple[datetime, float]]] = {}
    for name, at, workers in found.values_list("deployment", "at", "there"):
        quiet.setdefault(name, []).append((at, workers))
    return quiet


def worker_rows() -> list[Worker]:
    """Returns the workers that are known, ended ones of the last days too."""
    return list(Worker.objects.only("incarnation", "deployment_name", "host", "pid", "state", "cold_start_seconds"))


def used_by_tenants(time_range: TimeRange) -> list[Used]:
    """Returns what each tenant used of each deployment."""
    sums = usage_totals_of_all(
        bucket=_bucket(time_range),
        start=time_range.start,
        end=time_range.end,
        groups=[Group.TENANT, Group.DEPLOYMENT],
    )
    return [
        Used(
            tenant_ref=one.whose[Group.TENANT].ref,
            tenant=str(one.whose[Group.TENANT]),
            deployment=str(one.whose[Group.DEPLOYMENT]),
            requests=one.requests,
            tokens=computed_tokens(one),
            charged_micros=one.cost_micros,
        )
        for one in sums
    ]


def used_by_time(time_range: TimeRange, deployment: str | None) -> list[UsageSum]:
    """Returns what all tenants together used in each hour or day."""
    return usage_sums_of_all(
        bucket=_bucket(time_range), start=time_range.start, end=time_range.end, deployment=deployment
    )


def computed_tokens(used: UsageSum) -> int:
    """Returns the tokens that an engine had to compute."""
    return max(0, used.prompt_tokens - used.cached_tokens) + used.completion_tokens


def _bucket(time_range: TimeRange) -> Bucket:
    return Bucket.DAY if time_range.step.days else Bucket.HOUR


def _worker_hours(time_range: TimeRange) -> Any:  # noqa: ANN401  # a query set with what its rows do not have
    rows = FleetSample.objects.filter(span=FleetSpan.HOUR, at__gte=time_range.start, at__lt=time_range.end)
    return rows.exclude(worker="").alias(there=Coalesce("registered", Value(1.0)))


def _gpus(engine_args: Mapping[str, Any]) -> int:
    """Returns how many GPUs a worker takes where it takes any."""
    return prod(int(engine_args.get(name) or 1) for name in _PARALLEL)


def _capacities() -> dict[str, float]:
    """Returns tokens per second of the busiest hour that a worker of each deployment had, of all that is kept."""
    rows = FleetSample.objects.filter(span=FleetSpan.HOUR, tokens__gt=0.0).exclude(worker="").order_by()
    return dict(rows.values("deployment").annotate(most=Max("tokens")).values_list("deployment", "most"))
