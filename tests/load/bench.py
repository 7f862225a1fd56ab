"""A run of the bench: one row after another, the soak beside those whose margins are wide, everything in its time."""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from functools import partial

from tests.load.comparison import compared, read_rows
from tests.load.host import host_costs
from tests.load.placement import Placement
from tests.load.report import machine
from tests.load.results import DONE, FAILED, LEFT_OUT, TOO_LONG, Results, RowResult
from tests.load.rows import ROWS, Run
from tests.load.supervision import Keeper, Machine, Outcome, RowProcess, ended_by_signals

SOAK = "soak"
_PLANS = {row.name: row for row in ROWS}
USUAL_MINUTES = 55.0
"""For all rows: `make bench` in a fresh clone makes its environment before, in two or three."""
_QUICK_SECONDS, _QUICK_SHARE = 45.0, 0.4
"""Of a row in its short form: so long, or such a part of its time."""
_END_SECONDS = 5.0
"""Kept for what comes after the last row."""


class Bench:
    """Measures rows in an order, within a time."""

    def __init__(self, options: argparse.Namespace, arguments: Sequence[str], names: Sequence[str]) -> None:
        self._options = options
        self._placement = Placement.of_this_machine()
        self._earlier = read_rows(options.against) if options.against else None
        self._results = Results(options.output, machine(), arguments)
        self._began = time.monotonic()
        usual = math.inf if options.only or options.rounds else USUAL_MINUTES
        self._seconds = (options.minutes or usual) * 60
        with_soak = SOAK in names and not options.alone
        self._beside = [name for name in names if with_soak and _PLANS[name].is_tolerant]
        self._names = [name for name in names if name not in self._beside]
        self._waiting = sum(map(self._planned, self._names))
        """Seconds that the rows take which have not begun."""
        self._keeper = Keeper()
        self._running: list[RowProcess] = []

    def run(self) -> int:
        """Returns the exit status."""
        status = 0
        try:
            with ended_by_signals():
                self._results.host_is("before", host_costs(self._placement))
                for name in self._names:
                    self._soak() if name == SOAK else self._one(name)
                self._results.host_is("after", host_costs(self._placement))
                self._results.write()
        except (KeyboardInterrupt, SystemExit) as end:
            status = int(end.code or 1) if isinstance(end, SystemExit) else 130
            for row in self._running:
                self._results.add(RowResult(row.name, _PLANS[row.name].case, FAILED, "the bench was ended", row.age))
        finally:
            for row in self._running:
                row.end()
                row.clean()
            self._keeper.close()
        if self._earlier is not None:
            _say(f"\n{compared(self._earlier, self._results.rows)}")
        _say(f"\n{self._results.summary()}\nAll figures: {self._results.json_path}")
        return status or int(any(row.state in {FAILED, TOO_LONG} for row in self._results.rows))

    def _soak(self) -> None:
        """Measures it, and beside it what has wide margins: for minutes, it is all that memory and errors need."""
        watch, row = Machine(), self._start(SOAK)
        beside = sum(self._one(name, beside=row) for name in self._beside)
        self._end(row, row.wait(), watch, also=beside)

    def _one(self, name: str, *, beside: RowProcess | None = None) -> float:
        """Measures a row; returns the CPU seconds that it used."""
        if beside is None and (late := self._lateness(name)):
            planned = self._planned(name)
            self._waiting -= planned
            self._add(RowResult(name, _PLANS[name].case, LEFT_OUT, late, planned_seconds=planned))
            return 0.0
        before = beside.cpu_seconds() if beside else 0.0
        watch, row = Machine(), self._start(name, is_beside=beside is not None)
        outcome = row.wait()
        also = beside.cpu_seconds() - before if beside else 0.0
        self._end(row, outcome, watch, beside=SOAK if beside else "", also=also)
        return outcome.cpu_seconds

    def _lateness(self, name: str) -> str:
        """Says why there is no time for a row; empty where there is."""
        left, needed = self._left - _END_SECONDS, self._planned(name)
        return "" if needed <= left else f"no time: it takes {needed:.0f} s, and {left:.0f} are left of --minutes"

    def _start(self, name: str, *, is_beside: bool = False) -> RowProcess:
        planned, plan = self._planned(name), _PLANS[name]
        progress = _Progress(name, self._began, self._waiting)
        if not is_beside:
            self._waiting -= planned
        # What later rows do not need. A row beside the soak takes time from no other.
        spare = math.inf if is_beside else max(0.0, self._left - self._waiting - planned - _END_SECONDS)
        patience = 3 * planned + 180.0 if math.isinf(spare) else planned + 60.0
        limit = planned + max(60.0, planned / 2, min(patience, spare))
        until = time.monotonic() + min(limit, planned + spare)
        run = Run(self._options, self._placement, progress, self._results.plot_path, plan.rounds, until)
        progress(f"begins; {planned:.0f} s as planned, {limit:.0f} at most")
        row = RowProcess(name, partial(plan.measure, run), self._keeper, limit_seconds=limit)
        self._running.append(row)
        return row

    def _end(self, row: RowProcess, outcome: Outcome, watch: Machine, *, beside: str = "", also: float = 0.0) -> None:
        self._running.remove(row)
        row.clean()
        plan, (others, stolen) = _PLANS[row.name], watch.others(outcome.cpu_seconds + also)
        self._add(
            RowResult(
                row.name,
                plan.case,
                outcome.state,
                outcome.note,
                seconds=row.age,
                planned_seconds=self._planned(row.name),
                others_busy=others,
                stolen=stolen,
                beside=beside,
                own_check=plan.own_check,
                tables=outcome.tables,
                figures=outcome.figures,
            )
        )

    def _add(self, result: RowResult) -> None:
        self._results.add(result)
        for table in result.tables:
            _say(f"\n{table.text}")
        if result.remark or result.state != DONE:
            _say(f"\n{result.name}: {result.state}; {result.remark}")
        if result.state == FAILED:
            print(result.note, file=sys.stderr, flush=True)

    def _planned(self, name: str) -> float:
        """Returns how long a row takes, as far as that is known of numbers of the caller's own."""
        plan = _PLANS[name]
        if name == SOAK and (self._options.soak_minutes or self._options.quick):
            return float(self._options.soak_minutes or 0.5) * 60 + 6
        if self._options.quick:
            return min(plan.seconds, max(_QUICK_SECONDS, plan.seconds * _QUICK_SHARE))
        return plan.seconds * max(1.0, (self._options.rounds or 1) / plan.rounds)

    @property
    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._began)


class _Progress:
    """Says what a row does, how long the run has taken, and about how long it still takes."""

    def __init__(self, name: str, began: float, waiting: float) -> None:
        self._name = name
        self._began = began
        self._ends = time.monotonic() + waiting

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        left = max(0.0, self._ends - now) / 60
        print(f"[{now - self._began:5.0f} s, ~{left:.0f} min left] {self._name}: {text}", file=sys.stderr, flush=True)


def _say(text: str) -> None:
    print(text, flush=True)
