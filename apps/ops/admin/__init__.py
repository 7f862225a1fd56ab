"""Admin pages of operators."""

from apps.ops.admin import latency, schedule

__all__ = ["latency", "schedule"]
