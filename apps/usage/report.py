"""The admin's usage page: sums of days as charts and a table, for one tenant or for all."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from apps.deployments.prices import from_micros, money_text
from apps.tenants.models import Tenant
from apps.usage.buckets import bucket_edges, bucket_index
from apps.usage.enums import Bucket, Group
from apps.usage.selectors import UsageSum, usage_sums, usage_sums_of_all

SHOWN = 8
"""Parts that a chart tells apart; the rest is one of its own."""
COLOURS = ("#0891b2", "#f59e0b", "#7c3aed", "#16a34a", "#e11d48", "#2563eb", "#c026d3", "#65a30d", "#9ca3af")
CHART_OPTIONS: dict[str, Any] = {
    "animation": False,
    "responsive": True,
    "maintainAspectRatio": False,
    "maxBarThickness": 40,
    "interaction": {"mode": "index", "intersect": False},
    "scales": {
        "x": {"stacked": True, "grid": {"display": False}, "ticks": {"color": "#9ca3af", "maxTicksLimit": 16}},
        "y": {"stacked": True, "beginAtZero": True, "grid": {}, "ticks": {"color": "#9ca3af"}},
    },
    "plugins": {"legend": {"display": True, "align": "end", "labels": {"color": "#9ca3af", "boxWidth": 10}}},
}


@dataclass(slots=True)
class Total:
    """What one part (a deployment, a key) used in the whole time, and on each of its days."""

    name: str
    ref: str
    tokens_by_day: list[int]
    micros_by_day: list[int]
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_micros: int = 0

    @classmethod
    def of_days(cls, name: str, ref: str, days: int) -> "Total":
        """Returns one that has nothing yet."""
        return cls(name=name, ref=ref, tokens_by_day=[0] * days, micros_by_day=[0] * days)

    @property
    def cost(self) -> str:
        """For people."""
        return money_text(from_micros(self.cost_micros))

    def add(self, row: UsageSum, day: int) -> None:
        """Adds a sum to a day."""
        self.tokens_by_day[day] += row.tokens
        self.micros_by_day[day] += row.cost_micros
        self.requests += row.requests
        self.prompt_tokens += row.prompt_tokens
        self.cached_tokens += row.cached_tokens
        self.completion_tokens += row.completion_tokens
        self.cost_micros += row.cost_micros


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """What the page shows."""

    days: list[str]
    start: datetime
    end: datetime
    total: Total
    parts: list[Total] = field(default_factory=list)
    """The largest first."""

    @property
    def tokens_chart(self) -> dict[str, Any]:
        """Chart.js' data of tokens a day."""
        return self._chart([(part.name, list(part.tokens_by_day)) for part in self.parts])

    @property
    def cost_chart(self) -> dict[str, Any]:
        """Chart.js' data of money a day."""
        return self._chart(
            [(part.name, [float(from_micros(micros)) for micros in part.micros_by_day]) for part in self.parts]
        )

    def _chart(self, series: Sequence[tuple[str, list[Any]]]) -> dict[str, Any]:
        shown, rest = list(series[:SHOWN]), series[SHOWN:]
        if rest:
            shown.append((f"{len(rest)} others", [sum(day) for day in zip(*(data for _, data in rest), strict=True)]))
        return {
            "labels": self.days,
            "datasets": [
                {"label": name, "data": data, "backgroundColor": colour}
                for (name, data), colour in zip(shown, COLOURS, strict=False)
            ],
        }


def usage_report(*, tenant: Tenant | None, days: int, group: Group, now: datetime) -> UsageReport:
    """Returns the report of the last days, today among them, by the tenant's clock (UTC for all tenants)."""
    zone = ZoneInfo(tenant.time_zone if tenant is not None else "UTC")
    edges = bucket_edges(now - timedelta(days=days - 1), now, bucket=Bucket.DAY, zone=zone)
    span: dict[str, Any] = {"bucket": Bucket.DAY, "start": edges[0], "end": edges[-1], "groups": [group]}
    sums = usage_sums_of_all(**span) if tenant is None else usage_sums(tenant=tenant, **span)
    count = len(edges) - 1
    total, parts = Total.of_days("", "", count), dict[tuple[str, str], Total]()
    for row in sums:
        whose = row.whose[group]
        name = str(whose) or ("chat" if group is Group.API_KEY else "none")
        once = (whose.ref, whose.label if group is Group.DEPLOYMENT else "")
        part = parts.setdefault(once, Total.of_days(name, whose.ref, count))
        for target in (total, part):
            target.add(row, bucket_index(edges, row.start_at))
    return UsageReport(
        days=[f"{edge.astimezone(zone):%-d %b}" for edge in edges[:-1]],
        start=edges[0],
        end=edges[-1],
        total=total,
        parts=sorted(parts.values(), key=lambda part: (-part.cost_micros, -sum(part.tokens_by_day), part.name)),
    )
