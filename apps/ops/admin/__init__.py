"""Admin pages of operators."""

from apps.ops.admin import alerts, latency, live_streams, objectives, schedule

__all__ = ["alerts", "latency", "live_streams", "objectives", "schedule"]
