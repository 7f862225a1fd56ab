"""More clients than a gateway may serve: exactly as many as it may are served, the rest are refused at once.

The short form runs every time, the whole one in `make faults`; how fast it all is, `make bench` tells.
"""

import pytest

from tests.load.crowd_case import REFUSED, SERVED, CrowdLoad, CrowdRound, run_rounds, table_rows
from tests.load.report import render_table

WHOLE = CrowdLoad()
SHORT = CrowdLoad(workers=1, limit=512, clients=640, ramp_per_second=250.0, seconds=2.0)


def crowd(load: CrowdLoad) -> CrowdRound:
    (seen,) = run_rounds(load, rounds=1, progress=print)
    print(render_table(f"{load.clients} clients", ("figures",), table_rows(load, [seen])))
    return seen


@pytest.mark.parametrize("load", [SHORT, pytest.param(WHOLE, marks=pytest.mark.faults)], ids=["short", "whole"])
def test_exactly_the_limit_is_served_and_the_rest_refused(load: CrowdLoad) -> None:
    seen = crowd(load)
    assert seen.statuses == {SERVED: load.limit, REFUSED: load.clients - load.limit}
    assert seen.errors == 0
    assert seen.gap.count >= load.limit, "who was served got tokens to the end"
