"""The short form of the comparison: complete figures, and a wide bound on what a token costs.

The bound is a ratio to what client and endpoint use for the same token on the same machine in the same minute: LiteLLM
is at 15 to 25 times that, Headrace's gateway at about 1. LiteLLM itself is not installed here: 760 MB for one number.
"""

import math

import msgspec
import pytest

from tests.load.peers.arms import HEADRACE
from tests.load.peers.path_tables import path_table, told
from tests.load.peers.rounds import Round, _round, counting, run_rounds
from tests.load.peers.table import MET, MISSED, UNKNOWN, Line, Table, quartiles
from tests.load.peers.token_path import PathFigures, PathLoad
from tests.load.placement import Placement, on_core

GATEWAY_AT_MOST = 5.0
SYSTEM_AT_MOST = 12.0
"""Gateway, worker and Redis together."""


@pytest.fixture(scope="module")
def load() -> PathLoad:
    return PathLoad(seconds=3.0, plain_answers=20, short_streams=10, bursts=1, beside_seconds=1.0)


@pytest.fixture(scope="module")
def measured(load: PathLoad) -> Round:
    placement = Placement.of_this_machine()
    with on_core(placement.load):
        return run_rounds(load, [HEADRACE], placement, rounds=1, progress=print, title="short form")[-1]


def test_every_figure_is_there(load: PathLoad, measured: Round) -> None:
    for one in (*measured.baseline, measured.arms[HEADRACE]):
        for spread in (one.plain, one.ttft_alone, one.ttft_burst, one.ttft_beside, one.gap, one.gap_whole):
            assert spread.count > 0, one.arm
            assert spread.p50 <= spread.p99
        assert one.ttft_burst.count == load.streams
        assert min(one.plain.p50, one.ttft_alone.p50) > load.ttft_ms - 1, "nobody is faster than the engine"
        assert math.isfinite(one.tpot_ms)
    assert set(measured.arms[HEADRACE].us_per_token) == {"gateway", "worker", "redis"}


def test_a_token_costs_no_multiple_of_what_it_did(measured: Round) -> None:
    """A guard against gross regressions only."""
    floor = max(one.load_us_per_token for one in measured.baseline)
    ours = measured.arms[HEADRACE]
    assert ours.us_per_token["gateway"] < GATEWAY_AT_MOST * floor
    assert ours.system_us_per_token < SYSTEM_AT_MOST * floor


def test_table_without_peers_has_no_verdict_on_them(load: PathLoad, measured: Round) -> None:
    table = path_table(load, [HEADRACE], [measured])
    assert {line.verdict for line in table.lines if line.at_most is not None} == {UNKNOWN}
    assert "gateway CPU, running, us per token" in table.render()


def test_round_that_was_disturbed_does_not_count(measured: Round) -> None:
    quiet = msgspec.structs.replace(measured.baseline[0], load_core_busy=0.1, others_busy=0.0)

    def judged(**changes: float) -> str:
        return _round([quiet, quiet, msgspec.structs.replace(quiet, **changes)]).disturbed

    assert not judged()
    assert "drifted" in judged(load_us_per_token=1.3 * quiet.load_us_per_token)
    assert "busy" in judged(load_core_busy=0.9)
    assert "other processes" in judged(others_busy=1.0)
    good, bad = _round([quiet] * 3), Round([quiet, quiet], {}, "drifted")
    assert counting([bad, good]) == [good]
    assert counting([bad]) == [bad]
    assert "ALL 1 ROUNDS" in told([bad])


def test_added_is_what_exceeds_the_direct_arm_of_the_round(measured: Round) -> None:
    def seen(milliseconds: float) -> PathFigures:
        return msgspec.structs.replace(measured.baseline[0], tpot_ms=milliseconds)

    one = Round([seen(10), seen(12)], {HEADRACE: seen(14)})
    assert one.added(HEADRACE, lambda figures: figures.tpot_ms) == 3
    assert math.isnan(one.added("not measured", lambda figures: figures.tpot_ms))


def test_verdicts() -> None:
    assert Line("met", [[9.0]], [0.1, 0.3], at_most=0.2).verdict == MET
    assert Line("missed", [[0.1]], [0.3], at_most=0.2).verdict == MISSED
    assert Line("missed", [[4.0]], at_least=5.0).verdict == MISSED
    assert Line("second column", [[9.0], [1.0]], at_most=2.0, judged_column=1).verdict == MET
    assert Line("unknown", [[1.0]], [math.nan], at_most=0.2).verdict == UNKNOWN
    assert Line("no target", [[1.0]]).verdict == ""
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)


def test_a_target_between_the_quartiles_is_close() -> None:
    assert Line("close", [[9.0]], [0.1, 0.19, 0.3], at_most=0.2).is_close
    assert not Line("met", [[9.0]], [0.1, 0.11, 0.12, 0.3], at_most=0.2).is_close
    assert not Line("missed", [[4.0]], at_least=5.0).is_close
    assert not Line("unknown", [[1.0]], [math.nan], at_most=0.2).is_close
    assert not Line("no target", [[1.0]]).is_close


def test_table_shows_what_is_judged_and_no_verdict_of_a_disturbed_run() -> None:
    line = Line("a figure", [[0.1]], [0.3], at_most=0.2)
    assert Table("t", ["a"], [line]).markdown().endswith("| a figure | 0.100 | 0.300 | <= 0.2 | MISSED |")
    assert Table("t", ["a"], [line]).render().endswith(MISSED)
    assert Table("t", ["a"], [line], is_disturbed=True).render().endswith(UNKNOWN)
