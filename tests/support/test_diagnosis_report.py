"""What the table of injected causes says of what became of one."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.ops.diagnosis.causes import Cause
from headrace_wire.latency.measures import Measure
from tests.support.book_agreement import Pair
from tests.support.diagnosis_report import Row, row_keep, rows_kept, table_of


def row(cause: Cause = Cause.GUARD, **fields: Any) -> Row:
    usual: dict[str, Any] = {
        "at": datetime(2026, 11, 30, 12, tzinfo=UTC),
        "seconds": {"before": 20.0, "with": 30.0},
        "pairs": [pair(0.2, 0.201)],
        "way": 0.001,
        "named": [cause, Cause.GATEWAY],
        "after": [],
        "evidence": "Guard mean 0 ms → 3 s.",
        "problems": [],
    }
    return Row(cause=cause, **{**usual, **fields})


def pair(client: float, book: float) -> Pair:
    return Pair(Measure.TTFT, 0.5, client, book, abs(book - client) / client)


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, "right"),
        ({"pairs": [pair(0.2, 0.21)]}, "apart"),
        ({"pairs": [pair(0.2, 0.21)], "way": 0.02}, "late"),
        ({"pairs": [pair(0.2, 0.21), pair(0.2, 0.3)], "way": 0.02}, "apart"),
        ({"problems": ["guard is not named first: ..."]}, "wrong"),
        ({"pairs": [], "problems": ["TimeoutError()"]}, "no end"),
        ({"named": None, "problems": ["TimeoutError()"]}, "no end"),
    ],
)
def test_a_verdict_tells_a_late_machine_from_a_wrong_page(fields: dict[str, Any], verdict: str) -> None:
    assert row(**fields).verdict == verdict


def test_a_cause_that_runs_again_replaces_its_own_row_and_no_other(tmp_path: Path) -> None:
    row_keep(row(Cause.GUARD, problems=["TimeoutError()"]), tmp_path)
    row_keep(row(Cause.CAPACITY), tmp_path)
    row_keep(row(Cause.GUARD), tmp_path)
    assert rows_kept(tmp_path) == [row(Cause.CAPACITY), row(Cause.GUARD)]


def test_the_table_has_percentiles_of_both_sides_and_marks_what_is_apart() -> None:
    unsure = Pair(Measure.TTFT, 0.9, 0.2, 0.25, apart=0.01)
    found = row(pairs=[pair(0.2, 0.201), unsure, pair(0.2, 0.3)], problems=["guard is named still\n{}"])
    _, first, percentiles, problem = table_of([found])
    assert first.split()[:8] == ["guard", "12:00:00", "50", "s", "1+1~/3", "50.0%", "1.0", "ms"]
    assert first.endswith("wrong     guard, gateway (-)")
    assert " ".join(percentiles.split()) == "ttft p50 200.0 / 201.0 p90 200.0 / 250.0 ~ p50 200.0 / 300.0 !"
    assert problem.strip() == "guard is named still"
