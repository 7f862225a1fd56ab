"""Tables of figures: a column for each system or case, a target for some lines."""

import math
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.load.measurements import median_of
from tests.load.placement import Placement
from tests.load.results import Judged, Rendered
from tests.load.simulated_case import SimulatedRound
from tests.load.table_text import aligned, full_labels, markdown_lines
from tests.support.environment import REPOSITORY_ROOT


class Row(Struct, frozen=True):
    """One line of a table: what was measured, the figures of each column's rounds, and how far a figure may go."""

    label: str
    columns: Sequence[Sequence[float]]
    at_most: float | None = None
    at_least: float | None = None
    judged: int | None = None
    """Which column has the target; all, where none is named."""
    is_check: bool = False
    """Whether its limit says what the other lines are worth, and is no target of ours."""

    def cells(self) -> list[str]:
        """Returns the line's texts: label, median with the rounds' range for each column, target, verdict."""
        return [self.label, *map(_with_range, self.columns), self.target, "missed" if self.is_missed else ""]

    @property
    def target(self) -> str:
        """How far a figure may go; empty where it may go anywhere."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return f">= {self.at_least:g}" if self.at_least is not None else ""

    @property
    def medians(self) -> list[float]:
        """What the target speaks of."""
        judged = self.columns if self.judged is None else [self.columns[self.judged]]
        return [median_of(rounds) for rounds in judged]

    @property
    def is_missed(self) -> bool:
        """Whether a figure went too far, or is not there."""
        if self.at_most is not None:
            return not all(value <= self.at_most for value in self.medians)
        return self.at_least is not None and not all(value >= self.at_least for value in self.medians)

    @property
    def is_close(self) -> bool:
        """Whether a limit lies between the least and the greatest of the rounds that it speaks of."""
        judged = self.columns if self.judged is None else [self.columns[self.judged]]
        ranges = [(min(known), max(known)) for rounds in judged if (known := _known(rounds))]
        limits = [limit for limit in (self.at_most, self.at_least) if limit is not None]
        return any(least <= limit <= greatest for least, greatest in ranges for limit in limits)


def render_table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Returns a table in plain text."""
    return "\n".join([title, *aligned(_lines(columns, rows))])


def rendered(title: str, columns: Sequence[str], rows: Sequence[Row], *, prefix: str = "") -> Rendered:
    """Returns a table with all that it judges; `prefix` tells it from another one of the same lines."""
    judged = [
        Judged(
            f"{prefix}{label}",
            " / ".join(map(_number, row.medians)),
            row.target,
            "MISSED" if row.is_missed else "met",
            is_close=row.is_close,
        )
        for label, row in zip(full_labels([row.label for row in rows]), rows, strict=True)
        if row.target and not row.is_check
    ]
    head, *rest = title.split("\n")
    markdown = "\n".join([f"**{'; '.join([head, *rest])}**", "", *markdown_lines(_lines(columns, rows))])
    return Rendered(render_table(title, columns, rows), markdown, judged)


def _lines(columns: Sequence[str], rows: Sequence[Row]) -> list[list[str]]:
    return [["", *columns, "target", ""], *[row.cells() for row in rows]]


def simulated_rows(rounds: Sequence[SimulatedRound], transports: Sequence[str]) -> list[Row]:
    """Returns the lines of the simulated engine's table; one column for each transport."""
    by_transport = [[one for one in rounds if one.transport == name] for name in transports]

    def row(label: str, figure: Any, *, at_most: float | None = None, is_check: bool = False) -> Row:
        columns = [[figure(one) for one in column] for column in by_transport]
        return Row(label, columns, at_most, is_check=is_check)

    costs = {"gateway": 45.0, "worker": 15.0, "redis": 10.0}
    return [
        row("added TTFT beside the streams, p50 ms", lambda one: one.added_ttft_loaded.p50, at_most=6.0),
        row("added TTFT beside the streams, p99 ms", lambda one: one.added_ttft_loaded.p99),
        row("added TTFT alone, p50 ms", lambda one: one.added_ttft_alone.p50),
        row("added TTFT alone, p99 ms", lambda one: one.added_ttft_alone.p99),
        row("added TTFT, all streams at once, p50 ms", lambda one: one.added_ttft_burst.p50),
        row("gap between messages, p50 ms", lambda one: one.gap.p50),
        row("gap between messages, p99 ms", lambda one: one.gap.p99),
        *[
            row(f"{name} CPU, us per token", lambda one, name=name: one.costs[name].us_per_token, at_most=target)
            for name, target in costs.items()
        ],
        *[row(f"  of it idle: {name}", lambda one, name=name: one.costs[name].idle_us_per_token) for name in costs],
        *[row(f"{name} CPU, us per request", lambda one, name=name: one.costs[name].us_per_request) for name in costs],
        *[row(f"{name} RSS, MiB", lambda one, name=name: one.costs[name].rss_mib) for name in costs],
        row("tokens delivered per second", lambda one: one.tokens_per_second),
        row("load core busy, share", lambda one: one.load_core_busy, at_most=0.8, is_check=True),
        row("others busy, cores", lambda one: one.others_busy, at_most=0.2, is_check=True),
    ]


def machine() -> dict[str, Any]:
    """Says where and with what the figures were made."""
    return {
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "placement": str(Placement.of_this_machine()),
        "commit": _commit(),
    }


def _with_range(rounds: Sequence[float]) -> str:
    text = _number(median_of(rounds))
    known = _known(rounds)
    return f"{text} [{_number(min(known))}-{_number(max(known))}]" if len(known) > 1 else text


def _known(rounds: Sequence[float]) -> list[float]:
    return [value for value in rounds if not math.isnan(value)]


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 200 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=False, timeout=10)
    except OSError:
        return ""
    return done.stdout.strip()
