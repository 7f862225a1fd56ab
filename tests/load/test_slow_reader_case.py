"""The short form of the case, on the simulated engine: it must give complete figures, however good they are."""

import math

from tests.load.report import render_table
from tests.load.slow_reader_case import WINDOW, SlowReaderLoad, run_rounds, table_rows


def test_every_figure_is_there() -> None:
    # More tokens than a window has, so that they cannot all come at once; held for longer than it takes to be seen so.
    load = SlowReaderLoad(None, stalled=3, neighbour_tokens=3 * WINDOW, context_tokens=400, hold_seconds=8.0)
    (seen,) = run_rounds(load, rounds=1, progress=print)
    figures = [getattr(seen, name) for name in seen.__struct_fields__ if name != "gateway_kib_per_stalled"]
    assert all(figure > 0 and math.isfinite(figure) for figure in figures), seen
    assert seen.tokens_ahead == WINDOW
    assert "resumed to next token, suspended, ms" in render_table("title", ("figures",), table_rows(load, [seen]))
