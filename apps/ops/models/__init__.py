"""What operators look at."""

from apps.ops.models.fleet_samples import FleetSample
from apps.ops.models.latency import LatencyDay, LatencyHour, LatencyMark, LatencyMinute, LatencyTenMinutes

__all__ = ["FleetSample", "LatencyDay", "LatencyHour", "LatencyMark", "LatencyMinute", "LatencyTenMinutes"]
