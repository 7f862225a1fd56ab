"""A histogram whose buckets grow by 2 %: a quantile is within 1 % of the true one, and sums lose nothing."""

import math
import struct
from bisect import bisect_left
from collections.abc import Mapping
from typing import Self

GAMMA = 1.02
"""Each bucket's upper bound over its lower one."""
SHORTEST_SECONDS = 10e-6
"""What is shorter counts as nothing."""
LONGEST_SECONDS = 3600.0
"""What is longer counts as that."""

PER_LOG = 1 / math.log(GAMMA)
OFFSET = 1 - math.log(SHORTEST_SECONDS) * PER_LOG
"""`int(log(seconds) * PER_LOG + OFFSET)` is the bucket of a duration; bucket 0 is below `SHORTEST_SECONDS`."""
LAST_BUCKET = int(math.log(LONGEST_SECONDS) * PER_LOG + OFFSET)
BUCKETS = LAST_BUCKET + 1

_VALUES = (
    0.0,
    # Between a bucket's bounds, as far from either in proportion.
    *(SHORTEST_SECONDS * GAMMA ** (bucket - 1) * 2 * GAMMA / (1 + GAMMA) for bucket in range(1, BUCKETS)),
)
_HEADER = struct.Struct("<dHc")
_WIDTHS = ((0xFF, b"B"), (0xFFFF, b"H"), (0xFFFF_FFFF, b"I"), (0xFFFF_FFFF_FFFF_FFFF, b"Q"))


def bucket_of(seconds: float) -> int:
    """Return the bucket of a duration."""
    if seconds < SHORTEST_SECONDS:
        return 0
    return min(int(math.log(seconds) * PER_LOG + OFFSET), LAST_BUCKET)


class LogHistogram:
    """Counts of durations by bucket, and their exact sum."""

    __slots__ = ("counts", "sum_seconds")

    def __init__(self, counts: Mapping[int, int] | None = None, sum_seconds: float = 0.0) -> None:
        self.counts: dict[int, int] = dict(counts or {})
        """By bucket; those with nothing in them are not there."""
        self.sum_seconds = sum_seconds

    @property
    def count(self) -> int:
        """How many durations are in it."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """The mean in seconds; 0.0 where there is nothing."""
        count = self.count
        return self.sum_seconds / count if count else 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration `count` times."""
        bucket = bucket_of(seconds)
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.sum_seconds += seconds * count

    def merge(self, other: "LogHistogram") -> None:
        """Add all that is in another one."""
        counts = self.counts
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.sum_seconds += other.sum_seconds

    def quantile(self, q: float) -> float:
        """Return in seconds what a share `q` (0 to 1) of the durations does not exceed; 0.0 where there is nothing."""
        return self.quantiles((q,))[0]

    def quantiles(self, shares: tuple[float, ...]) -> tuple[float, ...]:
        """Return several quantiles for little more than the price of one."""
        buckets = sorted(self.counts)
        if not buckets:
            return (0.0,) * len(shares)
        reached, total = [], 0
        for bucket in buckets:
            total += self.counts[bucket]
            reached.append(total)
        return tuple(_VALUES[buckets[bisect_left(reached, max(1, math.ceil(q * total)))]] for q in shares)

    def count_above(self, seconds: float) -> float:
        """Return how many durations exceed a bound; the bucket that the bound is in is divided in proportion."""
        at = bucket_of(seconds)
        above: float = sum(count for bucket, count in self.counts.items() if bucket > at)
        if at in self.counts and at > 0:
            lower = SHORTEST_SECONDS * GAMMA ** (at - 1)
            share = (lower * GAMMA - seconds) / (lower * (GAMMA - 1))
            above += self.counts[at] * min(max(share, 0.0), 1.0)
        return above

    def pack(self) -> bytes:
        """Return the form that is stored: exact, and 3 bytes for a bucket that has less than 256."""
        counts = self.counts
        most = max(counts.values(), default=0)
        width = next(code for limit, code in _WIDTHS if most <= limit)
        size = len(counts)
        body = struct.pack(f"<{size}H{size}{width.decode()}", *counts.keys(), *counts.values())
        return _HEADER.pack(self.sum_seconds, size, width) + body

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Read what `pack` wrote.

        Raises:
            ValueError: it is none.
        """
        self = cls()
        self.merge_packed(packed)
        return self

    def merge_packed(self, packed: bytes) -> None:
        """Add what another one packed, without making it first.

        Raises:
            ValueError: it is none.
        """
        try:
            sum_seconds, size, width = _HEADER.unpack_from(packed)
            numbers = struct.unpack_from(f"<{size}H{size}{width.decode('ascii')}", packed, _HEADER.size)
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError("this is no packed histogram") from error
        counts = self.counts
        if counts:
            for bucket, count in zip(numbers[:size], numbers[size:], strict=True):
                counts[bucket] = counts.get(bucket, 0) + count
        else:
            counts.update(zip(numbers[:size], numbers[size:], strict=True))
        self.sum_seconds += sum_seconds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogHistogram) and self.counts == other.counts and self.sum_seconds == other.sum_seconds

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"LogHistogram({self.counts!r}, {self.sum_seconds!r})"
