"""Whose latencies, over which time, and the points that are given for it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Self
from uuid import UUID

from django.utils import timezone

from headrace_wire.latency.store import READABLE_SECONDS, SLOT_SECONDS
from headrace_wire.latency.summary import Summary

MOST_POINTS = 240
STEPS = (
    (timedelta(seconds=SLOT_SECONDS), timedelta(seconds=READABLE_SECONDS)),
    (timedelta(minutes=1), timedelta(days=2)),
    (timedelta(minutes=10), timedelta(days=3)),
    (timedelta(hours=1), timedelta(days=90)),
    (timedelta(hours=6), timedelta(days=90)),
    (timedelta(days=1), timedelta.max),
)
"""Lengths of steps, and how old what has them may be: the first one is Redis' slots, the others are of rows."""
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class LatencyScope:
    """Whose streams; None does not tell apart."""

    deployment: str | None = None
    """Its name."""
    tenant_id: UUID | None = None
    key_id: str | None = None
    """32 hex digits; "" for the web chat."""
    worker: str | None = None
    """Its incarnation."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From `start` up to and without `end`, in steps that begin at multiples of `step` since 1970."""

    start: datetime
    end: datetime
    step: timedelta

    @classmethod
    def of(cls, start: datetime, end: datetime, *, now: datetime | None = None) -> Self:
        """Returns the range with the finest step that makes at most `MOST_POINTS`, widened to whole steps.

        What is long ago is not kept in fine steps, however short the range is.

        Raises:
            ValueError: `end` is not after `start`, or the range is longer than 240 days.
        """
        if end <= start:
            raise ValueError("the range is empty")
        age = (now or timezone.now()) - start
        for step, oldest in STEPS:
            first, last = floor_to(start, step), ceil_to(end, step)
            if age <= oldest and (last - first) // step <= MOST_POINTS:
                return cls(first, last, step)
        raise ValueError("the range is too long")

    def steps(self) -> Iterator[datetime]:
        """Yields the beginning of each step."""
        at = self.start
        while at < self.end:
            yield at
            at += self.step

    def step_of(self, at: datetime) -> datetime:
        """Returns the beginning of the step that a moment of the range is in."""
        return self.start + (at - self.start) // self.step * self.step


def floor_to(at: datetime, step: timedelta) -> datetime:
    """Returns the beginning of the step that a moment is in."""
    return at - (at - _EPOCH) % step


def ceil_to(at: datetime, step: timedelta) -> datetime:
    """Returns the moment itself where a step begins with it, else the beginning of the next one."""
    return at + (_EPOCH - at) % step


@dataclass(slots=True)
class LatencyPoint(Summary):
    """What streams took that ended, and gaps that were, in the step that begins at `at`."""

    at: datetime = field(default=_EPOCH, kw_only=True)


@dataclass(frozen=True, slots=True)
class FleetPoint:
    """The fleet in the step that begins at `at`; means over the step (`FleetSample` says of what)."""

    at: datetime
    workers: float = 0.0
    registered: float | None = None
    running: float = 0.0
    held: float = 0.0
    suspended: float = 0.0
    spilled: float = 0.0
    waiting: float = 0.0
    waiting_most: float = 0.0
    kv_cache_usage: float = 0.0
    kv_cache_usage_most: float = 0.0
    tokens: float = 0.0
    prefix_hit_rate: float | None = None
    rss_bytes: float | None = None
    gpu_utilization: float | None = None
    gpu_bandwidth: float | None = None
    gpu_memory_bytes: float | None = None
    gpu_clock_mhz: float | None = None
    gpu_power_watts: float | None = None
    batch_limit: float | None = None
    batch_classic: float | None = None
    batch_objectives: float | None = None
    preemptions: float | None = None
    gpu_memory_usage_most: float | None = None
