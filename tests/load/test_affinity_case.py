"""The short form of the affinity bench, without the router beside it: affinity finds prefixes, with wide margins."""

import pytest

from tests.load.affinity_case import (
    HEADRACE,
    UNPREFERRED,
    AffinityLoad,
    AffinityRound,
    arms,
    run_rounds,
    table_rows,
    trace,
)
from tests.load.placement import Placement, on_core
from tests.load.report import render_table


@pytest.fixture(scope="module")
def measured() -> AffinityRound:
    """Streams are left for so long that a busy machine does not decide."""
    load = AffinityLoad(
        prefixes=1, cached_prefixes=5, requests=150, per_second=25.0, prefill_us=20.0, tpot_ms=10.0, prefer_ms=5000
    )
    placement = Placement.of_this_machine()
    with on_core(placement.load):
        return run_rounds(load, placement, rounds=1, names=arms(with_smg=False, unpreferred=True), progress=print)[0]


def test_prefixes_are_found_where_they_were_computed(measured: AffinityRound) -> None:
    """12 prefixes, of which one engine keeps 5: whoever takes what comes finds half of them."""
    ours, unpreferred = measured.arms[HEADRACE], measured.arms[UNPREFERRED]
    assert ours.hit_rate > 0.7
    assert ours.hit_rate > 1.1 * unpreferred.hit_rate


def test_no_worker_has_it_all(measured: AffinityRound) -> None:
    """3.0 would be all. The three most popular of the twelve make 1.8 where one worker got them all, by chance."""
    assert measured.arms[HEADRACE].highest_load < 2.7


def test_the_table_shows_both_arms(measured: AffinityRound) -> None:
    table = render_table("affinity", list(measured.arms), table_rows([measured]))
    assert UNPREFERRED in table
    assert "busiest worker" in table


def test_a_trace_is_the_same_again_and_popular_prefixes_lead() -> None:
    load = AffinityLoad(requests=400)
    first = trace(load)
    assert first == trace(load)
    beginning = [one.messages[0]["content"] for one in first if one.is_first]
    systems = [one.messages[0]["content"] for one in first if not one.is_first]
    assert len(systems) == 400
    assert len(set(beginning)) == len(beginning) == load.tenants * load.prefixes
    assert set(systems) <= set(beginning)
    counts = sorted((systems.count(text) for text in set(systems)), reverse=True)
    assert counts[0] > 4 * counts[len(counts) // 2]
    assert {len(text) for text in systems} == {load.prefix_tokens}
