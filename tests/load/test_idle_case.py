"""The short form of the case, on the simulated engine: it must give complete figures, however good they are."""

from tests.load.idle_case import WARM_REQUESTS, IdleLoad, run_rounds, table_rows
from tests.load.report import render_table


def test_every_figure_is_there() -> None:
    (seen,) = run_rounds(IdleLoad(None, idle_seconds=2.0), rounds=1, progress=print)
    assert len(seen.warm) == WARM_REQUESTS
    assert min(*seen.warm, seen.after) > 0.02, "the engine's own time to the first token"
    assert seen.warm_ups >= 1
    assert "ratio to the warm median" in render_table("title", ("figures",), table_rows([seen]))
