"""Points of a range: from rows and from Redis, each moment once, in a fixed number of queries."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from redis import Redis

from apps.ops.latency.roll_up import latency_roll_up
from apps.ops.latency.scopes import MOST_POINTS, LatencyPoint, LatencyScope, TimeRange, floor_to
from apps.ops.latency.selectors import latency_series, latency_total
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.summary import SeriesKey
from tests.support.latencies import latencies_file, latencies_seed, summary_of

pytestmark = pytest.mark.django_db

ANNA, BODO = uuid.UUID(int=0xA), uuid.UUID(int=0xB)
SERIES = {
    SeriesKey("tiny", ANNA.hex, "k1", "w1"): summary_of(requests=1),
    SeriesKey("tiny", ANNA.hex, "k2", "w2"): summary_of(requests=10),
    SeriesKey("tiny", BODO.hex, "", "w1"): summary_of(requests=100),
    SeriesKey("big", ANNA.hex, "k1", "w3"): summary_of(requests=1000),
}
SCOPES = {
    LatencyScope(): 1111,
    LatencyScope(deployment="tiny"): 111,
    LatencyScope(tenant_id=ANNA): 1011,
    LatencyScope(tenant_id=ANNA, deployment="tiny"): 11,
    LatencyScope(worker="w1"): 101,
    LatencyScope(worker="w1", deployment="big"): 0,
    LatencyScope(key_id="k1"): 1001,
    LatencyScope(key_id=""): 100,
    LatencyScope(tenant_id=ANNA, key_id="k1", deployment="tiny"): 1,
    LatencyScope(tenant_id=BODO, worker="w1"): 100,
    LatencyScope(tenant_id=BODO, key_id="k1"): 0,
}


@pytest.fixture(autouse=True)
def _redis(live_redis: Redis) -> None:
    """Slots go there."""


@pytest.fixture
def now() -> datetime:
    return timezone.now()


def requests(points: list[LatencyPoint]) -> int:
    return sum(point.tally(Tally.REQUESTS) for point in points)


@pytest.mark.parametrize("stored", [False, True], ids=["from Redis", "from rows"])
def test_a_scope_has_what_is_its_own(now: datetime, stored: bool) -> None:
    latency_roll_up(now=now - timedelta(minutes=30))
    latencies_file("g1-1", now - timedelta(minutes=10), SERIES)
    if stored:
        latency_roll_up(now=now)
    minute = timedelta(minutes=1)
    time_range = TimeRange(floor_to(now - 20 * minute, minute), floor_to(now, minute), minute)
    for scope, expected in SCOPES.items():
        assert requests(latency_series(scope, time_range)) == expected, scope
        assert latency_total(scope, time_range).tally(Tally.REQUESTS) == expected, scope


@pytest.mark.parametrize("length", [15, 60, 600, 1440, 10 * 1440])
def test_each_moment_counts_once_wherever_it_is_read(now: datetime, length: int) -> None:
    """Half an hour ago is in rows, a minute ago in Redis alone, and the last hour in no row of an hour yet."""
    latency_roll_up(now=now - timedelta(hours=2))
    for minutes in range(1, 100, 3):
        latencies_file(f"g1-{minutes}", now - timedelta(minutes=minutes), SERIES)
        if minutes == 22:
            latencies_file("g1-again", now - timedelta(minutes=minutes), SERIES)
    latency_roll_up(now=now - timedelta(minutes=5))
    latency_roll_up(now=now - timedelta(minutes=3))
    time_range = TimeRange.of(now - timedelta(minutes=length), now, now=now)
    filed = [minutes for minutes in (*range(1, 100, 3), 22) if now - timedelta(minutes=minutes) >= time_range.start]
    points = latency_series(LatencyScope(), time_range)
    assert requests(points) == 1111 * len(filed)
    assert [point.at for point in points] == list(time_range.steps())
    assert points[0].at <= now - timedelta(minutes=length) < points[0].at + time_range.step


def test_points_have_the_histograms_of_all_that_is_in_them(now: datetime) -> None:
    at = floor_to(now - timedelta(minutes=5), timedelta(minutes=1))
    latencies_file("g1-1", at, {SeriesKey("tiny"): summary_of(0.1, requests=99)})
    latencies_file("g1-2", at + timedelta(seconds=30), {SeriesKey("tiny"): summary_of(1.0)})
    point = latency_total(LatencyScope(), TimeRange(at, at + timedelta(minutes=1), timedelta(minutes=1)))
    assert point.histograms[Measure.TTFT].quantiles((0.5, 0.99, 1.0)) == pytest.approx((0.1, 0.1, 1.0), rel=0.01)
    assert point.histograms[Measure.TTFT].count_above(0.5) == 1


@pytest.mark.parametrize(
    ("length", "step"),
    [
        (timedelta(minutes=15), timedelta(seconds=10)),
        (timedelta(hours=1), timedelta(minutes=1)),
        (timedelta(hours=24), timedelta(minutes=10)),
        (timedelta(days=7), timedelta(hours=1)),
        (timedelta(days=30), timedelta(hours=6)),
        (timedelta(days=90), timedelta(days=1)),
    ],
)
def test_a_range_has_at_most_so_many_points(now: datetime, length: timedelta, step: timedelta) -> None:
    time_range = TimeRange.of(now - length, now, now=now)
    assert time_range.step == step
    assert len(list(time_range.steps())) <= MOST_POINTS
    assert time_range.start <= now - length
    assert now <= time_range.end


@pytest.mark.parametrize(
    ("ago", "step"),
    [
        (timedelta(hours=3), timedelta(minutes=1)),
        (timedelta(days=2, hours=1), timedelta(minutes=10)),
        (timedelta(days=30), timedelta(hours=1)),
        (timedelta(days=150), timedelta(days=1)),
    ],
)
def test_a_short_range_long_ago_has_the_steps_that_are_kept(now: datetime, ago: timedelta, step: timedelta) -> None:
    assert TimeRange.of(now - ago, now - ago + timedelta(minutes=15), now=now).step == step


@pytest.mark.parametrize("length", [timedelta(), timedelta(seconds=-1), timedelta(days=300)])
def test_a_range_that_is_none_or_too_long_is_refused(now: datetime, length: timedelta) -> None:
    with pytest.raises(ValueError, match="the range is"):
        TimeRange.of(now - length, now, now=now)


def test_months_are_read_in_a_few_queries(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    tenants = [uuid.UUID(int=number) for number in range(1, 4)]
    at = datetime(2026, 3, 4, 11, 55, tzinfo=UTC)  # marks of all tiers apart
    latencies_seed(tenants, now=at)
    scopes = LatencyScope(), LatencyScope(deployment="tiny"), LatencyScope(tenant_id=tenants[0])
    for hours, queries in (0.25, 0), (3, 2), (24, 3), (90 * 24, 5):
        time_range = TimeRange.of(at - timedelta(hours=hours), at, now=at)
        for scope in scopes:
            with django_assert_num_queries(queries):
                points = latency_series(scope, time_range)
            assert len(points) <= MOST_POINTS
            assert bool(requests(points)) == bool(queries)
