"""The short form of the case, on the simulated engine: it must give complete figures, however good they are."""

import math

from tests.load.draft_case import DraftLoad, run_rounds, table_rows
from tests.load.report import render_table


def test_every_figure_is_there() -> None:
    (seen,) = run_rounds(DraftLoad(None, prompt_tokens=1500), rounds=1, progress=print)
    for sent in (seen.cold, seen.drafted, seen.edited, seen.edited_early):
        assert sent.ttft_seconds > 0
        assert math.isfinite(sent.ttft_seconds)
    assert "ratio, drafted" in render_table("title", ("figures",), table_rows([seen]))
