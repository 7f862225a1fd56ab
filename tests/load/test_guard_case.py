"""The guard's bench in short: its figures are complete, and its text is innocent."""

import math

from tests.load import guard_case
from tests.load.guard_case import GuardCase, GuardLoad


def test_figures_are_complete() -> None:
    load = GuardLoad(cases=(GuardCase("few", words=50), GuardCase("alike", words=50, alike=1.0)), tokens=300)
    measured = guard_case.run_rounds(load, rounds=2, progress=lambda _: None)
    rows = guard_case.table_rows(load, measured)
    assert all(len(row.columns) == 2 and all(len(rounds) == 2 for rounds in row.columns) for row in rows)
    assert not any(math.isnan(figure) for row in rows for rounds in row.columns for figure in rounds)
    assert measured[0].held_share < measured[1].held_share
