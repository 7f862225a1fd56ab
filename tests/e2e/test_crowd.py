"""2,300 clients come to a gateway that holds 2,048: half of them generate, half wait in line, the rest is refused.

Who is held and who is refused is exact. How soon refusals come and how even the held streams go on is asserted of the
best of several rounds: other work on the machine spoils some of them, a delay of ours is in each. What they are on a
quiet machine, `make bench` tells.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.load.crowd_case import CrowdLoad, CrowdRound, run_rounds, table_rows
from tests.load.crowd_clients import REFUSED, SERVED
from tests.load.placement import going_first
from tests.load.report import render_table

REFUSAL_MS = 50.0
GAP_RATIO = 1.2
HALF = CrowdLoad(soft_limit=1024, workers=4, ramp_per_second=200.0, seconds=10.0)
"""With the limits that a gateway has by default."""
ALL = CrowdLoad()
"""All who are held generate."""


@pytest.mark.alone
@pytest.mark.parametrize("load", [HALF, pytest.param(ALL, marks=pytest.mark.faults)], ids=["half", "all"])
def test_exactly_the_limit_is_held_and_the_rest_refused(load: CrowdLoad) -> None:
    with before_others():
        (seen,) = run_rounds(load, rounds=1, progress=print)
    print(render_table(f"{load.clients} clients", ("figures",), table_rows(load, [seen])))

    assert seen.statuses == {SERVED: load.limit, REFUSED: load.clients - load.limit}
    assert seen.generating == load.soft_limit
    assert seen.places == list(range(1, load.limit - load.soft_limit + 1))
    assert seen.late_statuses == {REFUSED: load.refusal_rounds * load.late_comers}
    assert seen.error_share < 0.001
    assert seen.retry_seconds == [30], "nobody left in the last half minute: nobody knows"
    check_places_that_became_free(load, seen)

    refusals, gaps = [seen.refusal, *seen.late_refusals], seen.gap_parts
    assert min(one.p99 for one in refusals) <= REFUSAL_MS, f"p99 of refusals: {[one.p99 for one in refusals]} ms"
    assert min(one.p99 for one in gaps) <= GAP_RATIO * seen.engine_gap_ms, f"p99: {[one.p99 for one in gaps]} ms"


def check_places_that_became_free(load: CrowdLoad, seen: CrowdRound) -> None:
    """As many as left were let in, and the others told of the pace: 100 places in a few seconds."""
    assert seen.swapped == {SERVED: load.leaving, REFUSED: load.leaving // 2}
    assert seen.swapped_retry_seconds == [1]


@contextmanager
def before_others() -> Iterator[None]:
    """On a machine that others use too: what they do must not count, where we may say so."""
    with ExitStack() as ending:
        with suppress(PermissionError):
            ending.enter_context(going_first(wanted=True))
        yield
