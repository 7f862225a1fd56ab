from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.usage.buckets import ONE, bucket_edges, bucket_index, bucket_start
from apps.usage.enums import Bucket

ZURICH, KOLKATA = ZoneInfo("Europe/Zurich"), ZoneInfo("Asia/Kolkata")
ZONES = ("UTC", "Europe/Zurich", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia")


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]  # year, month, day and so on


@pytest.mark.parametrize(
    ("at", "bucket", "zone", "start"),
    [
        (utc(2026, 7, 1, 22, 30), Bucket.DAY, ZURICH, utc(2026, 7, 1, 22)),
        (utc(2026, 7, 1, 21, 59), Bucket.DAY, ZURICH, utc(2026, 6, 30, 22)),
        (utc(2026, 7, 1, 12, 29), Bucket.HOUR, KOLKATA, utc(2026, 7, 1, 11, 30)),
        # The night that summer time ends: two hours are called 2 o'clock.
        (utc(2026, 10, 25, 0, 30), Bucket.HOUR, ZURICH, utc(2026, 10, 25, 0)),
        (utc(2026, 10, 25, 1, 30), Bucket.HOUR, ZURICH, utc(2026, 10, 25, 1)),
    ],
)
def test_hours_and_days_begin_by_the_tenants_clock(
    at: datetime, bucket: Bucket, zone: ZoneInfo, start: datetime
) -> None:
    assert bucket_start(at, bucket=bucket, zone=zone) == start


def test_days_on_which_clocks_are_changed_have_23_and_25_hours() -> None:
    for start, hours in ((utc(2026, 3, 28, 23), 23), (utc(2026, 10, 24, 22), 25)):
        first, last = bucket_edges(start, start + timedelta(hours=1), bucket=Bucket.DAY, zone=ZURICH)
        assert (first, last - first) == (start, timedelta(hours=hours))
        assert len(bucket_edges(first, last, bucket=Bucket.HOUR, zone=ZURICH)) == hours + 1


@given(
    at=st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2035, 1, 1)),  # noqa: DTZ001
    zone=st.sampled_from(ZONES),
    bucket=st.sampled_from(list(Bucket)),
)
def test_edges_follow_each_other_and_hold_what_they_are_asked_for(at: datetime, zone: str, bucket: Bucket) -> None:
    start, clock = at.replace(tzinfo=UTC), ZoneInfo(zone)
    end = start + 3 * ONE[bucket]
    edges = bucket_edges(start, end, bucket=bucket, zone=clock)
    assert edges == sorted(set(edges))
    assert edges[0] <= start < edges[1]
    assert edges[-2] < end <= edges[-1]
    assert bucket_index(edges, start) == 0
