"""What operators look at."""

from apps.ops.models.alerts import Alert, AlertDelivery, AlertReceiver, AlertRule, AlertSilence
from apps.ops.models.costs import FleetCost
from apps.ops.models.fleet_samples import FleetSample
from apps.ops.models.latency import LatencyDay, LatencyHour, LatencyMark, LatencyMinute, LatencyTenMinutes
from apps.ops.models.live_streams import FleetProcess, LiveStream
from apps.ops.models.objectives import ServiceObjective

__all__ = [
    "Alert",
    "AlertDelivery",
    "AlertReceiver",
    "AlertRule",
    "AlertSilence",
    "FleetCost",
    "FleetProcess",
    "FleetSample",
    "LatencyDay",
    "LatencyHour",
    "LatencyMark",
    "LatencyMinute",
    "LatencyTenMinutes",
    "LiveStream",
    "ServiceObjective",
]
