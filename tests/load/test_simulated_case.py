"""The short form of the bench: it must give complete figures. How good they are is for `make bench` to tell."""

import math

import msgspec
import pytest

from tests.load.measurements import Spread
from tests.load.placement import Placement, on_core
from tests.load.report import rendered, simulated_rows
from tests.load.results import Results, RowResult
from tests.load.simulated_case import TRANSPORTS, SimulatedLoad, SimulatedRound, run_rounds


@pytest.fixture(scope="module")
def load() -> SimulatedLoad:
    return SimulatedLoad(seconds=3.0)


@pytest.fixture(scope="module")
def rounds(load: SimulatedLoad) -> list[SimulatedRound]:
    placement = Placement.of_this_machine()
    with on_core(placement.load):
        return run_rounds(load, placement, rounds=1, progress=print)


def test_every_transport_is_measured(rounds: list[SimulatedRound]) -> None:
    assert [one.transport for one in rounds] == list(TRANSPORTS)


def test_answers_are_complete(load: SimulatedLoad, rounds: list[SimulatedRound]) -> None:
    # A client that misses one token of its answer raises, so what was counted here is whole.
    for one in rounds:
        assert one.answers > load.streams
        assert one.tokens_delivered > load.streams


def test_every_duration_was_sampled(load: SimulatedLoad, rounds: list[SimulatedRound]) -> None:
    for one in rounds:
        for spread in (one.added_ttft_alone, one.added_ttft_burst, one.added_ttft_loaded, one.gap):
            assert spread.count > 0
            assert spread.p50 <= spread.p99 <= spread.highest
        assert one.added_ttft_burst.count == load.streams
        # The engine's own part is never undercut: a first token before it would be somebody else's.
        assert one.added_ttft_alone.p50 > 0


def test_every_process_has_its_costs(rounds: list[SimulatedRound]) -> None:
    for one in rounds:
        assert set(one.costs) == {"gateway", "worker", "redis"}
        for cost in one.costs.values():
            assert cost.us_per_token > 0
            assert cost.idle_us_per_token >= 0
            assert cost.rss_mib > 1
        assert one.load_core_busy > 0


def test_report_carries_all_of_it(tmp_path_factory: pytest.TempPathFactory, rounds: list[SimulatedRound]) -> None:
    table = rendered("title", tuple(TRANSPORTS), simulated_rows(rounds, tuple(TRANSPORTS)))
    assert "gateway CPU, us per token" in table.text
    results = Results(tmp_path_factory.mktemp("bench"), {}, [])
    results.add(RowResult("sim", "A", tables=[table], figures={"rounds": rounds}))
    read = msgspec.json.decode(results.json_path.read_bytes())
    assert msgspec.convert(read["rows"]["sim"]["figures"]["rounds"], list[SimulatedRound]) == rounds
    assert "gateway CPU, us per token" in results.summary()


def test_spread_of_nothing_has_no_percentiles() -> None:
    spread = Spread.of_seconds([])
    assert spread.count == 0
    assert math.isnan(spread.p50)
