"""Tables of a comparison: an arm per column, the ratio that is judged, its target and whether it was met."""

import math
import statistics
from collections.abc import Sequence

from msgspec import Struct

from tests.load.results import Judged, Rendered
from tests.load.table_text import aligned, full_labels, markdown_lines

MET, MISSED, UNKNOWN = "met", "MISSED", "-"


class Line(Struct, frozen=True):
    """One line: the figures of each column's rounds, and what is judged of them."""

    label: str
    columns: Sequence[Sequence[float]]
    judged: Sequence[float] = ()
    """What the target speaks of, round by round; where it is empty, `judged_column`."""
    at_most: float | None = None
    at_least: float | None = None
    judged_column: int = 0
    """The column that the target speaks of where nothing is `judged`."""

    @property
    def value(self) -> float:
        """What is judged."""
        return median(self.judged or self.columns[self.judged_column])

    @property
    def verdict(self) -> str:
        """Whether the target was met; empty where there is none."""
        if self.at_most is None and self.at_least is None:
            return ""
        if math.isnan(self.value):
            return UNKNOWN
        held = (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )
        return MET if held else MISSED

    @property
    def is_close(self) -> bool:
        """Whether the target lies between the quartiles of the rounds."""
        first, third = quartiles(self.judged or self.columns[self.judged_column])
        return any(limit is not None and first <= limit <= third for limit in (self.at_most, self.at_least))

    def cells(self) -> list[str]:
        """Returns the line's texts."""
        target = f"<= {self.at_most:g}" if self.at_most is not None else ""
        target = f">= {self.at_least:g}" if self.at_least is not None else target
        return [self.label, *map(_cell, self.columns), _cell(self.judged), target, self.verdict]


class Table(Struct, frozen=True):
    """A case's figures."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Line]
    is_disturbed: bool = False
    """Whether no round counts: then it has figures, and no verdict."""

    def render(self) -> str:
        """Returns it in plain text: medians, and in brackets the quartiles of the rounds."""
        rows = [["", *self.columns, "judged", "target", ""], *map(self._cells, self.lines)]
        return "\n".join([self.title, *aligned(rows)])

    def markdown(self) -> str:
        """Returns it as the documentation has it."""
        rows = [["", *self.columns, "judged", "target", "verdict"], *map(self._cells, self.lines)]
        return "\n".join([f"**{self.title}**", "", *markdown_lines(rows)])

    def rendered(self) -> Rendered:
        """Returns it with all that it judges."""
        labels = full_labels([line.label for line in self.lines])
        judged = [
            Judged(label, number(line.value), target, verdict, line.is_close)
            for label, line in zip(labels, self.lines, strict=True)
            if line.verdict
            for *_, target, verdict in [self._cells(line)]
        ]
        return Rendered(self.render(), self.markdown(), judged)

    def _cells(self, line: Line) -> list[str]:
        *cells, verdict = line.cells()
        return [*cells, UNKNOWN if verdict and self.is_disturbed else verdict]


def median(values: Sequence[float]) -> float:
    """Returns the median of what is a number; NaN of nothing."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the first and the third quartile; of a single value, twice that."""
    known = [value for value in values if not math.isnan(value)]
    if len(known) < 2:
        return median(known), median(known)
    first, _, third = statistics.quantiles(known, n=4, method="inclusive")
    return first, third


def ratio(numerator: float, denominator: float) -> float:
    """Returns a ratio; NaN where it says nothing."""
    return numerator / denominator if denominator > 0 else math.nan


def _cell(values: Sequence[float]) -> str:
    middle = median(values)
    if math.isnan(middle):
        return "-" if values else ""
    known = [value for value in values if not math.isnan(value)]
    text = number(middle)
    return text if len(known) < 2 else f"{text} [{'-'.join(map(number, quartiles(values)))}]"


def number(value: float) -> str:
    """Returns a figure with as many digits as are worth reading."""
    size = abs(value)
    return (
        f"{value:.0f}"
        if size >= 200
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3f}"
    )
