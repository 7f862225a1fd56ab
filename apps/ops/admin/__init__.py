"""Admin pages of operators."""

from apps.ops.admin import alerts, costs, latency, live_streams, objectives, schedule

__all__ = ["alerts", "costs", "latency", "live_streams", "objectives", "schedule"]
