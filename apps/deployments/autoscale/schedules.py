"""Which window of a policy's week holds at a moment, and what it makes of the bounds."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from apps.deployments.autoscale.terms import PolicyTerms, Window, WindowKind


@dataclass(frozen=True, slots=True)
class Bounds:
    """How few and how many workers there may be now."""

    low: int
    high: int
    load_factor: float = 1.0
    """The load counts this many times: a reserve decides as if there were more of it."""
    window: Window | None = None


def bounds_at(policy: PolicyTerms, now: datetime) -> Bounds:
    """Returns the bounds at `now`. Of several windows that hold, the first counts.

    A reserve of 20 % raises the fewest to 1.2 times as many (rounded up, never above the most) and counts the load 1.2
    times; a release of 50 % takes half of both bounds away (rounded up, so one worker stays where one must be).
    """
    window = next((one for one in policy.windows if holds(one, now, policy.time_zone)), None)
    low, high = policy.min_workers, policy.max_workers
    if window is None:
        return Bounds(low, high)
    if window.kind is WindowKind.RESERVE:
        return Bounds(min(high, _scaled(low, 100 + window.percent)), high, 1 + window.percent / 100, window)
    kept = 100 - window.percent
    return Bounds(_scaled(low, kept), max(1, _scaled(high, kept)), 1.0, window)


def _scaled(count: int, percent: int) -> int:
    return math.ceil(count * percent / 100)


def holds(window: Window, now: datetime, time_zone: str) -> bool:
    """Says whether `now` lies in the window, by the clock of `time_zone`."""
    local = now.astimezone(ZoneInfo(time_zone))
    clock = local.time()
    if window.start < window.end:
        return local.weekday() in window.days and window.start <= clock < window.end
    began_yesterday = (local - timedelta(days=1)).weekday() in window.days and clock < window.end
    return began_yesterday or (local.weekday() in window.days and clock >= window.start)
