"""The tiers of rows, finest first: how long their spans are, and how long they are kept."""

from dataclasses import dataclass
from datetime import timedelta

from apps.ops.enums import LatencyTier
from apps.ops.models import LatencyDay, LatencyHour, LatencyMinute, LatencyTenMinutes
from apps.ops.models.latency import LatencyRow


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier; each is made of the one before, the first one of what Redis has."""

    name: LatencyTier
    model: type[LatencyRow]
    span: timedelta
    kept: timedelta


MINUTES = Tier(LatencyTier.MINUTE, LatencyMinute, timedelta(minutes=1), timedelta(days=2))
TEN_MINUTES = Tier(LatencyTier.TEN_MINUTES, LatencyTenMinutes, timedelta(minutes=10), timedelta(days=3))
HOURS = Tier(LatencyTier.HOUR, LatencyHour, timedelta(hours=1), timedelta(days=90))
DAYS = Tier(LatencyTier.DAY, LatencyDay, timedelta(days=1), timedelta(days=200))
TIERS = (MINUTES, TEN_MINUTES, HOURS, DAYS)
