"""From points to what the page's script draws: one list of numbers for each series (`panels` says which)."""

from collections.abc import Sequence
from datetime import datetime

from apps.deployments.prices import from_micros
from apps.ops.costs.selectors import CostPoint, cost_total
from apps.ops.latency.presentation import Json, Number, columns, rounded
from apps.ops.latency.scopes import TimeRange


def cost_numbers_json(time_range: TimeRange, points: Sequence[CostPoint], *, now: datetime) -> Json:
    """Returns the series of one range and its totals, as the latency page's script takes them."""
    shown = [point for point in points if point.at < now]
    return {
        "start": time_range.start.timestamp(),
        "end": time_range.end.timestamp(),
        "step": time_range.step.total_seconds(),
        "at": [int(point.at.timestamp()) for point in shown],
        "series": columns([_values(point) for point in shown]),
        "totals": _values(cost_total(shown, time_range.start)),
    }


def _values(point: CostPoint) -> dict[str, Number]:
    """Returns a point's numbers; where no worker was sampled there is nothing to say of workers."""
    use = point.use
    workers: dict[str, float | None] = {
        "hours.all": use.hours,
        "hours.busy": use.busy_hours,
        "hours.idle": use.idle_hours,
        "share.idle": use.idle_share,
        "use.places": use.places_share,
        "use.capacity": use.capacity_share,
        "tokens.per_hour": use.tokens_per_hour,
        "tokens.per_gpu_hour": use.tokens_per_gpu_hour,
        "tokens.per_kwh": use.tokens_per_kwh,
        "cost.running": use.known_cost,
        "cost.idle": use.known_idle_cost,
    }
    return {
        "count.requests": point.requests,
        "cost.charged": rounded(float(from_micros(point.charged_micros))),
        **{name: rounded(value) if use.hours else None for name, value in workers.items()},
    }
