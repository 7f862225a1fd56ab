"""What the latency page is made of: figures, charts, and the series that each draws (`presentation` computes them)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from headrace_wire.latency.measures import PHASES, Measure

QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
_Text = str | Promise


class Unit(StrEnum):
    """How a number is shown (`static/ops/latency/numbers.js`)."""

    SECONDS = "seconds"
    PER_SECOND = "per_second"
    SHARE = "share"
    COUNT = "count"
    BYTES = "bytes"
    WATTS = "watts"
    MEGAHERTZ = "megahertz"
    MONEY = "money"


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart."""

    series: str
    label: _Text
    colour: str
    """A custom property of `latency.css` without its `--lt-`."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Lines that a chart may have instead of others."""

    name: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart with its legend and table."""

    name: str
    title: _Text
    about: _Text
    unit: Unit
    lines: Sequence[Line]
    is_stacked: bool = False
    is_optional: bool = False
    """Not shown where nothing has ever reported it."""
    is_of_fleet: bool = False
    """About workers and not about requests: for operators."""
    goals: Sequence[str] = ()
    """Series that may have a goal."""
    top: float | None = None
    """Where the axis ends."""
    total: Line | None = None
    """What of a stack is drawn of the time before."""
    variants: Sequence["Variant"] = ()
    """Other lines for the same chart, to choose from; `lines` are the first one's."""

    @property
    def spec(self) -> dict[str, Any]:
        """What the page's script needs to know."""
        kept = {name: getattr(self, name) for name in ("name", "unit", "is_stacked", "is_optional", "goals", "top")}
        return {
            **kept,
            "lines": [_line(line) for line in self.lines],
            "total": self.total and _line(self.total),
            "variants": [{"name": one.name, "lines": [_line(line) for line in one.lines]} for one in self.variants],
        }


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the whole time."""

    series: str
    title: _Text
    unit: Unit
    is_of_fleet: bool = False

    @property
    def name(self) -> str:
        """For the page's script."""
        return self.series.replace(".", "-")

    @property
    def spec(self) -> dict[str, Any]:
        """What the page's script needs to know."""
        return {"name": self.name, "series": self.series, "unit": self.unit}


_PHASE_NAMES: dict[Measure, tuple[_Text, str]] = {
    Measure.ADMISSION: (_("Admission"), "one"),
    Measure.QUEUE: (_("Queue"), "two"),
    Measure.RETRIEVAL: (_("Retrieval"), "four"),
    Measure.PREFILL: (_("Prefill"), "three"),
    Measure.GUARD: (_("Guard"), "five"),
    Measure.FLUSH: (_("Delivery"), "six"),
}


def _quantiles(measure: Measure) -> tuple[Line, ...]:
    return tuple(Line(f"{measure}.{name}", name, name) for name in QUANTILES)


def _line(line: Line) -> dict[str, Any]:
    return {"series": line.series, "label": str(line.label), "colour": line.colour}


def _phases(part: str) -> tuple[Line, ...]:
    return tuple(Line(f"{phase}.{part}", *_PHASE_NAMES[phase]) for phase in PHASES)


def _fleet(name: str, label: _Text, colour: str) -> Line:
    return Line(f"fleet.{name}", label, colour)


TILES = (
    Tile("ttft.p50", _("First token, p50"), Unit.SECONDS),
    Tile("ttft.p95", _("First token, p95"), Unit.SECONDS),
    Tile("ttft.p99", _("First token, p99"), Unit.SECONDS),
    Tile("tpot.p50", _("Per token, p50"), Unit.SECONDS),
    Tile("count.requests", _("Requests"), Unit.COUNT),
    Tile("share.errors", _("Errors"), Unit.SHARE),
    Tile("rate.tokens", _("Tokens"), Unit.PER_SECOND),
    Tile("fleet.running", _("Running"), Unit.COUNT, is_of_fleet=True),
)

_LATENCY_PANELS = (
    Panel(
        name="ttft",
        title=_("Time to first token"),
        about=_("From the request at the gateway to the first text on its way to the client."),
        unit=Unit.SECONDS,
        lines=_quantiles(Measure.TTFT),
        goals=[f"ttft.{name}" for name in QUANTILES],
    ),
    Panel(
        name="phases",
        title=_("First token by phase"),
        about=_("Means, which add up to the mean time to first token."),
        unit=Unit.SECONDS,
        lines=_phases("share"),
        is_stacked=True,
        total=Line("ttft.mean", _("All phases"), "text"),
    ),
    Panel(
        name="phase-quantiles",
        title=_("Each phase by itself"),
        about=_("Quantiles of a phase do not add up to those of the whole."),
        unit=Unit.SECONDS,
        lines=_phases("p95"),
        goals=[f"{phase}.{name}" for phase in PHASES for name in QUANTILES],
        variants=[Variant(name, _phases(name)) for name in ("p95", "p50", "p90", "p99")],
    ),
    Panel(
        name="tpot",
        title=_("Time per token"),
        about=_("Decode time over the tokens after the first, in the engine."),
        unit=Unit.SECONDS,
        lines=_quantiles(Measure.TPOT),
        goals=[f"tpot.{name}" for name in QUANTILES],
    ),
    Panel(
        name="gap",
        title=_("Gap between tokens"),
        about=_("From one text on its way to the client to the next."),
        unit=Unit.SECONDS,
        lines=_quantiles(Measure.GAP),
        goals=[f"gap.{name}" for name in QUANTILES],
    ),
    Panel(
        name="total",
        title=_("Total time"),
        about=_("From the request to the last byte; long answers take long."),
        unit=Unit.SECONDS,
        lines=_quantiles(Measure.TOTAL),
        goals=[f"total.{name}" for name in QUANTILES],
    ),
)
_TRAFFIC_PANELS = (
    Panel(
        name="tokens",
        title=_("Tokens per second"),
        about=_("Of answers, as they were handed to clients."),
        unit=Unit.PER_SECOND,
        lines=[Line("rate.tokens", _("Answer tokens"), "one")],
    ),
    Panel(
        name="requests",
        title=_("Requests per second"),
        about=_("Counted where they ended; a stall is a client that did not take what was there."),
        unit=Unit.PER_SECOND,
        lines=[Line("rate.requests", _("Requests"), "one"), Line("rate.stalls", _("Client stalls"), "two")],
    ),
    Panel(
        name="errors",
        title=_("Errors"),
        about=_("Share of requests that failed, and of those that ended at a deadline."),
        unit=Unit.SHARE,
        lines=[Line("share.errors", _("Errors"), "five"), Line("share.timeouts", _("Timeouts"), "two")],
        goals=["share.errors"],
    ),
    Panel(
        name="breaker",
        title=_("Circuit breaker"),
        about=_("How many requests it sent to the fallback, or turned away; of the deployment that was asked for."),
        unit=Unit.COUNT,
        lines=[
            Line("count.diverted", _("To the fallback"), "two"),
            Line("count.turned_away", _("Turned away"), "five"),
        ],
        is_optional=True,
    ),
    Panel(
        name="prefix",
        title=_("Prefix hits"),
        about=_("Share of prompt tokens that came from a prefix cache."),
        unit=Unit.SHARE,
        lines=[Line("share.cached", _("Prefix hits"), "one")],
        top=1.0,
    ),
)
_FLEET_PANELS = (
    Panel(
        name="streams",
        title=_("Streams in workers"),
        about=_("Held ones are out of credit, spilled ones lost their place in the KV cache meanwhile."),
        unit=Unit.COUNT,
        lines=[
            _fleet("running", _("Running"), "one"),
            _fleet("held", _("Held"), "two"),
            _fleet("suspended", _("Suspended"), "three"),
            _fleet("spilled", _("Spilled"), "six"),
        ],
        is_of_fleet=True,
    ),
    Panel(
        name="workers",
        title=_("Workers"),
        about=_("Those that were ready, and all that had registered: loading, drained, asleep or broken ones too."),
        unit=Unit.COUNT,
        lines=[_fleet("workers", _("Ready"), "one"), _fleet("registered", _("Registered"), "six")],
        is_of_fleet=True,
    ),
    Panel(
        name="queue",
        title=_("Queue depth"),
        about=_("Streams that wait for a worker."),
        unit=Unit.COUNT,
        lines=[_fleet("waiting", _("Mean"), "one"), _fleet("waiting_most", _("Most"), "two")],
        is_of_fleet=True,
    ),
    Panel(
        name="kv",
        title=_("KV cache in use"),
        about=_("The mean of the workers, and the fullest one."),
        unit=Unit.SHARE,
        lines=[_fleet("kv_cache_usage", _("Mean"), "one"), _fleet("kv_cache_usage_most", _("Most"), "two")],
        is_of_fleet=True,
        top=1.0,
    ),
    Panel(
        name="preemptions",
        title=_("Preemptions per second"),
        about=_("Requests that lost their place in the KV cache while they ran, and were computed again."),
        unit=Unit.PER_SECOND,
        lines=[_fleet("preemptions", _("Preemptions"), "five")],
        is_optional=True,
        is_of_fleet=True,
    ),
    Panel(
        name="batch",
        title=_("Batch of a worker"),
        about=_("Streams that may run at once, and how many each rule of the dynamic batch would let."),
        unit=Unit.COUNT,
        lines=[
            _fleet("batch_limit", _("In force"), "one"),
            _fleet("batch_classic", _("Classic rule"), "two"),
            _fleet("batch_objectives", _("By objectives"), "three"),
        ],
        is_optional=True,
        is_of_fleet=True,
    ),
    Panel(
        name="memory",
        title=_("Memory"),
        about=_("Of the workers' processes, and of their GPUs where there are any."),
        unit=Unit.BYTES,
        lines=[_fleet("rss_bytes", _("Processes"), "one"), _fleet("gpu_memory_bytes", _("GPUs"), "three")],
        is_of_fleet=True,
    ),
    Panel(
        name="gpu",
        title=_("GPU in use"),
        about=_("Share of time in which a kernel ran, and in which memory was read or written."),
        unit=Unit.SHARE,
        lines=[_fleet("gpu_utilization", _("Kernels"), "one"), _fleet("gpu_bandwidth", _("Memory"), "two")],
        is_optional=True,
        is_of_fleet=True,
        top=1.0,
    ),
    Panel(
        name="gpu-memory",
        title=_("GPU memory in use"),
        about=_("Of the fullest worker's GPUs, by whomever. An engine takes its share when it starts."),
        unit=Unit.SHARE,
        lines=[_fleet("gpu_memory_usage_most", _("Most"), "three")],
        is_optional=True,
        is_of_fleet=True,
        top=1.0,
    ),
    Panel(
        name="power",
        title=_("GPU power"),
        about=_("All GPUs of the workers together."),
        unit=Unit.WATTS,
        lines=[_fleet("gpu_power_watts", _("Power"), "two")],
        is_optional=True,
        is_of_fleet=True,
    ),
    Panel(
        name="clock",
        title=_("GPU clock"),
        about=_("The mean of the GPUs."),
        unit=Unit.MEGAHERTZ,
        lines=[_fleet("gpu_clock_mhz", _("Clock"), "three")],
        is_optional=True,
        is_of_fleet=True,
    ),
)
PANELS = (*_LATENCY_PANELS, *_TRAFFIC_PANELS, *_FLEET_PANELS)
