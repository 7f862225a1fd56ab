"""Admin pages of operators."""

from apps.ops.admin import schedule

__all__ = ["schedule"]
