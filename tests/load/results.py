"""What a run leaves: tables and figures of each row, written when it has ended, and all verdicts in one place."""

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tests.load.host import HostCosts
from tests.load.table_text import aligned, markdown_lines

DONE, FAILED, TOO_LONG, LEFT_OUT = "done", "FAILED", "TOOK TOO LONG", "left out"
_LONGEST_NOTE = 90
_VERDICTS = {"-": "no verdict", "": "no verdict"}
MOST_OTHERS = 0.05
"""Cores that processes outside the bench may use, or that the hypervisor may take, while a row is measured."""


class Judged(Struct, frozen=True):
    """One target, and what was seen."""

    what: str
    figure: str
    target: str
    verdict: str
    is_close: bool = False
    """Whether the target lies within what the rounds differ by: another run may well say otherwise."""


class Rendered(Struct, frozen=True):
    """A table as people read it, and what it judges."""

    text: str
    markdown: str
    judged: list[Judged] = []


class RowResult(Struct, frozen=True):
    """What became of one row."""

    name: str
    case: str
    """Of the issue."""
    state: str = DONE
    note: str = ""
    """Why it has no figures."""
    seconds: float = 0.0
    planned_seconds: float = 0.0
    others_busy: float = 0.0
    """Cores that processes outside the bench used meanwhile."""
    stolen: float = 0.0
    """Cores that the hypervisor gave to others."""
    beside: str = ""
    """A row that was measured at the same time."""
    own_check: bool = False
    """Whether the row itself leaves out rounds that were disturbed."""
    tables: list[Rendered] = []
    figures: Any = None

    @property
    def disturbed(self) -> str:
        """Why its figures are to be doubted; empty where they are not."""
        if self.state != DONE or self.own_check:
            return ""
        if self.others_busy > MOST_OTHERS:
            return f"disturbed: others used {self.others_busy:.2f} of a core"
        return f"disturbed: the hypervisor took {self.stolen:.2f} of a core" if self.stolen > MOST_OTHERS else ""

    @property
    def remark(self) -> str:
        """What a reader of its figures must know."""
        beside = f"measured beside {self.beside}" if self.beside else ""
        return "; ".join(part for part in (_short(self.note), self.disturbed, beside) if part)

    def verdicts(self) -> list[list[str]]:
        """Returns its lines of the table of verdicts."""
        judged = [one for table in self.tables for one in table.judged]
        if self.state != DONE:
            # Also a row that has some of its figures met nothing.
            return [[self.case, self.name, "the whole row", "-", "", f"{self.state}: {self.remark}"]]
        return [[self.case, self.name, one.what, one.figure, one.target, self._told(one)] for one in judged]

    def _told(self, judged: Judged) -> str:
        marks = [name for name, holds in [("close", judged.is_close), ("disturbed", self.disturbed)] if holds]
        verdict = _VERDICTS.get(judged.verdict, judged.verdict)
        return f"{verdict} ({', '.join(marks)})" if marks else verdict


class Results:
    """All rows of a run; a file of each kind, written anew with every row, so that a killed bench loses nothing."""

    def __init__(self, folder: Path, machine: dict[str, Any], arguments: Sequence[str]) -> None:
        self.began = dt.datetime.now(dt.UTC)
        self.rows: list[RowResult] = []
        self._machine = machine
        self._host: dict[str, HostCosts] = {}
        self._arguments = list(arguments)
        self._stem = folder / f"{self.began:%Y%m%d-%H%M%S}"
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def json_path(self) -> Path:
        """The file with every figure of every round."""
        return self._stem.with_suffix(".json")

    def plot_path(self, name: str) -> Path:
        """The file of a row's plot."""
        return self._stem.with_name(f"{self._stem.name}-{name}.png")

    def host_is(self, when: str, costs: HostCosts) -> None:
        """Keeps what the machine itself took at some moment; written with the next row, or by `write`."""
        self._host[when] = costs

    def add(self, row: RowResult) -> None:
        """Keeps a row, and writes all that there is."""
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        """Writes all that there is."""
        content = {
            "measured_at": self.began,
            "machine": self._machine,
            "host": self._host,
            "arguments": self._arguments,
            "rows": {one.name: one for one in self.rows},
        }
        _write(self.json_path, msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        tables = [table.markdown for one in self.rows for table in one.tables]
        parts = [
            "\n".join(markdown_lines(self._verdict_lines())),
            "\n".join(markdown_lines(self._time_lines())),
            "\n".join(markdown_lines(self._host_lines())),
            *tables,
        ]
        _write(self._stem.with_suffix(".md"), ("\n\n".join(parts) + "\n").encode())

    def summary(self) -> str:
        """Returns the verdicts of all rows and the time that each took."""
        tables = {"Verdicts": self._verdict_lines(), "Time": self._time_lines(), "Host": self._host_lines()}
        return "\n".join(
            [*(line for name, lines in tables.items() for line in [name, *aligned(lines), ""]), self._counts()]
        )

    def _verdict_lines(self) -> list[list[str]]:
        lines = [line for row in self.rows for line in row.verdicts()]
        return [["case", "row", "figure", "judged", "target", "verdict"], *lines]

    def _time_lines(self) -> list[list[str]]:
        lines = [
            [
                row.name,
                f"{row.planned_seconds:.0f}",
                f"{row.seconds:.0f}",
                f"{row.others_busy:.2f}",
                row.remark or row.state,
            ]
            for row in self.rows
        ]
        return [["row", "planned, s", "took, s", "others, cores", ""], *lines]

    def _host_lines(self) -> list[list[str]]:
        head = ["the machine itself, us", "wake-up and back", "new page", "read of memory", "work", "after 20 ms"]
        return [head, *[[when, *costs.cells()] for when, costs in self._host.items()]]

    def _counts(self) -> str:
        verdicts = [line[-1].lower() for row in self.rows for line in row.verdicts()]
        missed, met = (sum(verdict.startswith(word) for verdict in verdicts) for word in ("missed", "met"))
        return f"{met} targets met, {missed} missed, {len(verdicts) - met - missed} without a verdict"


def _short(note: str) -> str:
    """Returns the last line of what went wrong, for a table."""
    line = note.strip().rsplit("\n", 1)[-1]
    return line if len(line) <= _LONGEST_NOTE else f"{line[:_LONGEST_NOTE]}..."


def _write(path: Path, content: bytes) -> None:
    """A reader, and a run that is killed in this moment, find the old file or the new one."""
    part = path.with_suffix(f"{path.suffix}.part")
    part.write_bytes(content)
    os.replace(part, path)  # noqa: PTH105
