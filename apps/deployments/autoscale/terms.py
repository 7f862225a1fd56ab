"""The plain values that a decision is made of. Shares are 0..1 and above, durations seconds, times aware."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, time
from enum import StrEnum

TICK_SECONDS = 15
"""Between two samples, where the installation does not say otherwise."""


class Rule(StrEnum):
    """What a decision follows from."""

    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    SCHEDULE = "schedule"
    """A bound that a window of the schedule has moved."""
    WAKE_UP = "wake_up"
    SCALE_OUT = "scale_out"
    SCALE_IN = "scale_in"
    IDLE = "idle"
    """Nothing was asked for so long that no worker is needed."""
    COOLDOWN = "cooldown"
    STARTING = "starting"
    """Workers that were asked for are not ready yet."""
    KEEP = "keep"


class WindowKind(StrEnum):
    """What a window of the schedule does."""

    RESERVE = "reserve"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Window:
    """A weekly window by the policy's clock; one that ends before it begins lasts into the next day."""

    kind: WindowKind
    days: frozenset[int]
    """Of its beginning; 0 is Monday."""
    start: time
    end: time
    percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """One deployment's policy."""

    min_workers: int = 1
    max_workers: int = 4
    scale_out_share: float = 0.8
    scale_out_seconds: float = 300.0
    scale_out_step: int = 2
    scale_in_share: float = 0.3
    scale_in_seconds: float = 1800.0
    scale_in_step: int = 1
    cooldown_seconds: float = 300.0
    start_seconds: float = 600.0
    """How long a worker that was asked for may take until it is ready."""
    idle_seconds: float = 900.0
    queue_goal_seconds: float = 2.0
    """Wait in the queue (p95) that counts as full load."""
    ttft_goal_seconds: float = 0.0
    """Time to the first token (p95) that counts as full load; 0: does not count."""
    worker_requests_per_second: float = 0.0
    """What one worker is taken to serve; 0: as measured."""
    time_zone: str = "UTC"
    windows: tuple[Window, ...] = ()
    tick_seconds: float = TICK_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was measured of a deployment at one tick. None: not known."""

    at: datetime
    workers: int = 0
    """Alive, in any state but draining and sleeping."""
    sleeping: int = 0
    """Alive without an engine, because nobody used it."""
    ready: int = 0
    running: int = 0
    waiting: int = 0
    """For a worker; who waits for his own limit is not among them."""
    places: int = 0
    """Requests that all ready workers run at once."""
    requests_per_second: float | None = None
    worker_capacity: float | None = None
    """Requests per second that one worker serves, measured while some waited."""
    queue_p95: float | None = None
    ttft_p95: float | None = None
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """What is so now, beside the load."""

    current: int
    """Workers that the executor is to run, those that sleep left out."""
    sleeping: int = 0
    changed_at: datetime | None = None
    """When a decision changed that last."""
    has_grown: bool = False
    """Whether that change was upwards."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many workers there should be, and why."""

    target: int
    rule: Rule
    reason: str
    inputs: Mapping[str, object] = field(default_factory=dict)
