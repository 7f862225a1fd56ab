"""Choices of what operators use."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class LatencyLevel(models.TextChoices):
    """What a row of latencies sums up; fields that it does not tell apart are empty."""

    ALL = "all", _("everything")
    DEPLOYMENT = "deployment", _("deployment")
    TENANT = "tenant", _("tenant and deployment")
    WORKER = "worker", _("worker and deployment")
    SERIES = "series", _("deployment, tenant, key and worker")


class LatencyTier(models.TextChoices):
    """How long the spans of rows are."""

    MINUTE = "minute", _("minute")
    TEN_MINUTES = "ten_minutes", _("ten minutes")
    HOUR = "hour", _("hour")
    DAY = "day", _("day")


class FleetSpan(models.TextChoices):
    """How long the spans of fleet samples are."""

    MINUTE = "minute", _("minute")
    HOUR = "hour", _("hour")
