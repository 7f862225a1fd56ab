"""Where hours and days begin by a tenant's clock. All times are aware; what is returned is UTC."""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from apps.usage.enums import Bucket

ONE = {Bucket.HOUR: timedelta(hours=1), Bucket.DAY: timedelta(days=1)}
"""How long a bucket is where no clock is changed."""


def bucket_start(at: datetime, *, bucket: Bucket, zone: ZoneInfo) -> datetime:
    """Returns the beginning of the hour or day that `at` is in."""
    local = at.astimezone(zone)
    if bucket is Bucket.DAY:
        return datetime.combine(local.date(), time.min, zone).astimezone(UTC)
    # Hours are told apart by the instant: in autumn there are two of the same name.
    return at.astimezone(UTC) - timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)


def bucket_next(start: datetime, *, bucket: Bucket, zone: ZoneInfo) -> datetime:
    """Returns the beginning of the bucket after the one that begins at `start`."""
    if bucket is Bucket.DAY:
        tomorrow = start.astimezone(zone).date() + timedelta(days=1)
        return datetime.combine(tomorrow, time.min, zone).astimezone(UTC)
    return bucket_start(start + ONE[Bucket.HOUR], bucket=bucket, zone=zone)


def bucket_edges(
    start: datetime, end: datetime, *, bucket: Bucket, zone: ZoneInfo, limit: int | None = None
) -> list[datetime]:
    """Returns the beginnings of the buckets that `start` to `end` (exclusive) touches, and the end of the last one.

    No more than the first `limit` of them, where that is given.
    """
    edges = [bucket_start(start, bucket=bucket, zone=zone)]
    while edges[-1] < end and (limit is None or len(edges) <= limit):
        edges.append(bucket_next(edges[-1], bucket=bucket, zone=zone))
    return edges


def bucket_index(edges: Sequence[datetime], at: datetime) -> int:
    """Returns which bucket `at` is in.

    A sum keeps the beginning that it was stored with; after a change of the tenant's time zone it counts where it
    began.
    """
    return bisect_right(edges, at) - 1
