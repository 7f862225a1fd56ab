"""Admin pages of operators."""

from apps.ops.admin import latency, live_streams, schedule

__all__ = ["latency", "live_streams", "schedule"]
