import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_wire.latency.histogram import BUCKETS, LONGEST_SECONDS, SHORTEST_SECONDS, LogHistogram, bucket_of

durations = st.floats(SHORTEST_SECONDS, LONGEST_SECONDS)
counted = st.lists(st.tuples(st.floats(0.0, 10_000.0), st.integers(1, 2**40)), max_size=30)


def histogram_of(counts: list[tuple[float, int]]) -> LogHistogram:
    histogram = LogHistogram()
    for seconds, count in counts:
        histogram.add(seconds, count)
    return histogram


def merged(*histograms: LogHistogram) -> LogHistogram:
    total = LogHistogram()
    for histogram in histograms:
        total.merge(histogram)
    return total


@given(st.lists(durations, min_size=1, max_size=200), st.sampled_from([0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_one_percent_of_the_exact_one(values: list[float], q: float) -> None:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(1, math.ceil(q * len(values))) - 1]
    assert histogram.quantile(q) == pytest.approx(exact, rel=0.0100001)


@given(durations)
def test_no_duration_falls_outside_the_buckets(seconds: float) -> None:
    assert 1 <= bucket_of(seconds) < BUCKETS


@given(counted, counted, counted)
def test_sums_do_not_depend_on_their_order(
    a: list[tuple[float, int]], b: list[tuple[float, int]], c: list[tuple[float, int]]
) -> None:
    one, two, three = map(histogram_of, (a, b, c))
    left, right = merged(merged(one, two), three), merged(three, merged(two, one))
    assert left.counts == right.counts
    assert left.sum_seconds == pytest.approx(right.sum_seconds)
    assert left.count == sum(count for _, count in [*a, *b, *c])


@given(counted)
def test_what_was_packed_is_read_again(counts: list[tuple[float, int]]) -> None:
    histogram = histogram_of(counts)
    assert LogHistogram.unpack(histogram.pack()) == histogram


@given(counted, counted)
def test_a_packed_one_can_be_added(a: list[tuple[float, int]], b: list[tuple[float, int]]) -> None:
    direct = histogram_of(a)
    direct.merge_packed(histogram_of(b).pack())
    assert direct == merged(histogram_of(a), histogram_of(b))


@given(st.lists(durations, min_size=1, max_size=100), durations)
def test_what_is_above_a_bound_is_exact_but_for_the_bucket_of_the_bound(values: list[float], bound: float) -> None:
    histogram = histogram_of([(value, 1) for value in values])
    beyond = sum(value > bound * 1.0201 for value in values)
    assert beyond <= histogram.count_above(bound) + 1e-6
    assert histogram.count_above(bound) <= sum(value > bound / 1.0201 for value in values) + 1e-6


def test_extremes_are_clamped() -> None:
    histogram = histogram_of([(0.0, 1), (1e9, 1)])
    assert histogram.quantile(0.5) == 0.0
    assert histogram.quantile(1.0) == pytest.approx(LONGEST_SECONDS, rel=0.011)


def test_an_empty_one_answers_zeros() -> None:
    histogram = LogHistogram()
    assert (histogram.count, histogram.mean, histogram.quantiles((0.5, 0.99))) == (0, 0.0, (0.0, 0.0))
    assert LogHistogram.unpack(histogram.pack()) == histogram


@given(st.integers(1, 10**6), durations)
def test_the_mean_is_exact(count: int, seconds: float) -> None:
    assert Fraction(histogram_of([(seconds, count)]).mean) == pytest.approx(Fraction(seconds))


@pytest.mark.parametrize("packed", [b"", b"x", LogHistogram({5: 1}, 1.0).pack()[:-1], b"\0" * 8 + b"\1\0\xff"])
def test_something_else_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="no packed histogram"):
        LogHistogram.unpack(packed)
