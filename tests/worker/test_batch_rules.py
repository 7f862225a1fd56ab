"""The rules of the dynamic batch: what each reading makes of a limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.batch_rules import BatchBounds, BatchReading, by_objectives, classic, quantile

BOUNDS = BatchBounds(2, 64, tpot_goal_seconds=0.05, ttft_goal_seconds=0.5)
seconds = st.floats(0, 10)
readings = st.builds(
    BatchReading, st.floats(0, 1), st.integers(0, 100), st.lists(seconds, max_size=20), st.lists(seconds, max_size=20)
)


@pytest.mark.parametrize(("load", "limit"), [(0.81, 8), (0.8, 16), (0.3, 16), (0.29, 32)])
def test_classic_halves_what_is_full_and_doubles_what_is_idle(load: float, limit: int) -> None:
    assert classic(16, BatchReading(load, 16), BOUNDS) == limit


def test_classic_stays_within_the_bounds() -> None:
    assert classic(3, BatchReading(0.9, 3), BOUNDS) == 2
    assert classic(40, BatchReading(0.1, 3), BOUNDS) == 64


def test_tokens_that_come_too_slowly_cut_the_batch_in_proportion() -> None:
    assert by_objectives(32, BatchReading(0.5, 32, [0.0625] * 9), BOUNDS) == 25
    assert by_objectives(32, BatchReading(0.5, 32, [1.0] * 9), BOUNDS) == 16  # half at most
    assert by_objectives(64, BatchReading(0.5, 20, [0.1] * 9), BOUNDS) == 10  # of what runs, not of what might


def test_it_grows_only_where_the_limit_keeps_streams_out_and_tokens_come_quickly() -> None:
    assert by_objectives(16, BatchReading(0.5, 16, [0.02]), BOUNDS) == 18
    assert by_objectives(16, BatchReading(0.5, 10, [0.02]), BOUNDS) == 16
    assert by_objectives(16, BatchReading(0.5, 16, [0.045]), BOUNDS) == 16


def test_late_first_tokens_let_it_grow_up_to_the_goal_for_tokens() -> None:
    assert by_objectives(16, BatchReading(0.5, 16, [0.045], [0.8]), BOUNDS) == 18
    assert by_objectives(16, BatchReading(0.5, 16, [0.06], [0.8]), BOUNDS) == 13


@given(st.integers(1, 200), readings)
def test_no_reading_leads_out_of_the_bounds(limit: int, reading: BatchReading) -> None:
    assert BOUNDS.least <= classic(limit, reading, BOUNDS) <= BOUNDS.most
    assert BOUNDS.least <= by_objectives(limit, reading, BOUNDS) <= BOUNDS.most


@given(st.lists(seconds, min_size=1))
def test_nine_of_ten_do_not_exceed_the_quantile(values: list[float]) -> None:
    within = sum(value <= quantile(values) for value in values)
    assert within >= 0.9 * (len(values) - 1)
