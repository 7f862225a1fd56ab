"""The tables of the page of costs: the same columns as text for people and as values for files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.deployments.prices import from_micros, money_text
from apps.ops.costs.selectors import CostReport, DeploymentCost

MOST_ROWS = 100
"""That are shown of a table; the file has all."""
NOT_MEASURED = _("not measured here")
NOT_KNOWN = _("not known")
NO_COST = _("no cost given")
NO_GPU = _("no GPU seen")
_DIGITS = 6
_Text = str | Promise
_Row = Any


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `value` is a number, a text, or None where it is not known."""

    name: str
    """In files."""
    title: _Text
    value: Callable[[_Row], object]
    words: Callable[[Any], str] = str
    unknown: _Text = NOT_KNOWN

    def text(self, row: _Row) -> str:
        """For people."""
        value = self.value(row)
        return str(self.unknown) if value is None else self.words(value)

    def cell(self, row: _Row) -> object:
        """For files: what is not known is empty."""
        value = self.value(row)
        return "" if value is None else round(value, _DIGITS) if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Table:
    """One table and where its rows come from."""

    name: str
    title: _Text
    about: _Text
    empty: _Text
    columns: Sequence[Column]
    rows: Callable[[CostReport], Sequence[_Row]]

    def shown(self, report: CostReport) -> dict[str, Any]:
        """Returns what the template shows."""
        rows = self.rows(report)
        return {
            "name": self.name,
            "title": self.title,
            "about": self.about,
            "empty": self.empty,
            "headings": [column.title for column in self.columns],
            "rows": [[column.text(row) for column in self.columns] for row in rows[:MOST_ROWS]],
            "left_out": max(0, len(rows) - MOST_ROWS),
        }

    @property
    def csv_columns(self) -> Mapping[str, Callable[[_Row], object]]:
        """For files."""
        return {column.name: column.cell for column in self.columns}


def notes_of(report: CostReport) -> list[str]:
    """Returns what has to be said before the tables are read."""
    hours = (report.time_range.end - report.time_range.start).total_seconds() / 3600
    notes = [
        gettext("There are samples of %(seen)d of these %(all)d hours; the hour that runs has none yet.")
        % {"seen": report.hours_sampled, "all": hours}
    ]
    if not report.is_power_known:
        notes.append(gettext("Power is not measured here: no worker has a GPU that tells it. So nothing is per kWh."))
    if not report.is_cost_known:
        notes.append(gettext("No deployment has a cost of a worker-hour or a kWh: what they cost is not known here."))
    elif without := [one.name for one in report.deployments if one.use.hours and not one.use.priced_hours]:
        notes.append(gettext("No cost of a worker-hour is given for: %(names)s.") % {"names": ", ".join(without)})
    return notes


# ---- words


def _share(value: float) -> str:
    return f"{value:.1%}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _hours(value: float) -> str:
    return f"{value:,.1f}"


def _money(value: float) -> str:
    if abs(value) >= 1:
        return f"{value:,.2f}"
    return f"{value:.{_DIGITS}f}".rstrip("0").rstrip(".") or "0"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s"


def _charged(row: _Row) -> object:
    return money_text(from_micros(row.charged_micros))


def _left(row: _Row) -> float | None:
    return None if row.share is None else float(from_micros(row.charged_micros)) - row.share


def _per_million(row: DeploymentCost) -> float | None:
    return None if row.per_token is None else row.per_token * 1e6


def _start(row: DeploymentCost) -> str:
    measured = gettext("measured") if row.is_start_measured else gettext("assumed, not measured here")
    return f"{_seconds(row.start_seconds)} ({measured})"


# ---- columns

_USE = (
    Column("worker_hours", _("Worker-hours"), lambda row: row.use.hours, _hours),
    Column("idle_share", _("Idle, at least"), lambda row: row.use.idle_share, _share),
    Column("places_share", _("Places taken"), lambda row: row.use.places_share, _share),
    Column("busiest_hour_share", _("Of the busiest hour"), lambda row: row.use.capacity_share, _share),
    Column("tokens", _("Tokens"), lambda row: row.use.tokens, _count),
    Column("tokens_per_worker_hour", _("Per worker-hour"), lambda row: row.use.tokens_per_hour, _count),
    Column("tokens_per_gpu_hour", _("Per GPU-hour"), lambda row: row.use.tokens_per_gpu_hour, _count, NO_GPU),
    Column("kwh", _("kWh"), lambda row: row.use.known_kwh, _money, NOT_MEASURED),
    Column("power_known_share", _("Power known"), lambda row: row.use.powered_share, _share),
    Column("tokens_per_kwh", _("Per kWh"), lambda row: row.use.tokens_per_kwh, _count, NOT_MEASURED),
    Column("cost", _("Cost"), lambda row: row.use.known_cost, _money, NO_COST),
    Column("idle_cost", _("Of it idle"), lambda row: row.use.known_idle_cost, _money, NO_COST),
)
_REQUESTS = (
    Column("requests", _("Requests"), lambda row: row.requests, _count),
    Column("computed_tokens", _("Computed tokens"), lambda row: row.tokens, _count),
    Column("charged", _("Charged"), _charged),
)

DEPLOYMENTS = Table(
    "deployments",
    _("Deployments"),
    _(
        "Tokens are those that workers generated. Computed tokens are those of the ledger: prompts without what a cache"
        " had, and answers; a million of them cost what the deployment cost, idle hours included."
    ),
    _("No worker and no request in this time."),
    [
        Column("deployment", _("Deployment"), lambda row: row.name),
        *_USE,
        *_REQUESTS,
        Column("cost_per_million", _("Cost of a million"), _per_million, _money),
    ],
    lambda report: report.deployments,
)
WORKERS = Table(
    "workers",
    _("Workers"),
    _("Each process by itself, from its registration to its end. Ready is the share in which it took requests."),
    _("No worker was sampled in this time."),
    [
        Column("worker", _("Worker"), lambda row: row.name),
        Column("incarnation", _("Incarnation"), lambda row: row.worker),
        Column("ready_share", _("Ready"), lambda row: row.use.ready_share, _share),
        *_USE,
    ],
    lambda report: report.workers,
)
TENANTS = Table(
    "tenants",
    _("Tenants"),
    _(
        "Charged is what the ledger has, by the prices at admission. The share of the cost goes by computed tokens,"
        " idle hours included. Days are the tenants' own."
    ),
    _("No requests in this time."),
    [
        Column("tenant", _("Tenant"), lambda row: row.name),
        Column("tenant_id", _("Id"), lambda row: row.tenant_ref),
        *_REQUESTS,
        Column("cost_share", _("Share of the cost"), lambda row: row.share, _money),
        Column("left", _("Charged less cost"), _left, _money),
    ],
    lambda report: report.tenants,
)
TO_ZERO = Table(
    "scale-to-zero",
    _("Scale to zero"),
    _(
        "What would have been saved, had the workers of a deployment ended while nobody asked: of gaps of whole hours"
        " that are longer than the wait of its autoscale policy (15 minutes where it has none) and a start. Shorter"
        " gaps are not seen, so it is at least this. The first request after each gap would have waited for a start."
    ),
    _("No worker was there while nobody asked for so long."),
    [
        Column("deployment", _("Deployment"), lambda row: row.name),
        Column("gaps", _("Gaps"), lambda row: row.to_zero.gaps, _count),
        Column("worker_hours", _("Worker-hours"), lambda row: row.to_zero.hours, _hours),
        Column("saved", _("Saved, without power"), lambda row: row.to_zero_saved, _money, NO_COST),
        Column("idle_seconds", _("Wait until the end"), lambda row: row.idle_seconds, _seconds),
        Column("start", _("A start takes"), _start),
    ],
    lambda report: [row for row in report.deployments if row.to_zero.gaps],
)
SMALLER = Table(
    "smaller-models",
    _("Smaller models"),
    _(
        "What tenants' tokens would have cost at the cheapest other deployment that they see, by what a computed token"
        " cost there in this time: as if workers of the one had ended, and of the other been started, in proportion."
        " Whether its answers are good enough is for people to judge."
    ),
    _("No cheaper deployment is known: both need a cost of a worker-hour and tokens in this time."),
    [
        Column("tenant", _("Tenant"), lambda row: row.tenant),
        Column("deployment", _("Deployment"), lambda row: row.deployment),
        Column("other", _("Other deployment"), lambda row: row.other),
        Column("computed_tokens", _("Computed tokens"), lambda row: row.tokens, _count),
        Column("cost", _("Cost"), lambda row: row.cost, _money),
        Column("other_cost", _("Cost there"), lambda row: row.other_cost, _money),
        Column("saved", _("Saved"), lambda row: row.saved, _money),
    ],
    lambda report: report.smaller,
)
TABLES = {table.name: table for table in (DEPLOYMENTS, WORKERS, TENANTS, TO_ZERO, SMALLER)}
