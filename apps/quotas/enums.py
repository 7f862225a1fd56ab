"""Choices of this app's models."""

from django.db import models

from headrace_wire import snapshot


class QuotaScope(models.TextChoices):
    """Whom a quota limits, taken together."""

    GLOBAL = snapshot.QuotaScope.GLOBAL, "Everybody together"
    DEPLOYMENT = snapshot.QuotaScope.DEPLOYMENT, "One deployment, all tenants together"
    TENANT = snapshot.QuotaScope.TENANT, "One tenant"
    MEMBER = snapshot.QuotaScope.MEMBER, "One member of a tenant"
    API_KEY = snapshot.QuotaScope.API_KEY, "One API key"


class Priority(models.IntegerChoices):
    """Bands of a fair queue; a higher one goes first, and none starves."""

    HIGH = 0, "0: high"
    NORMAL = 1, "1: normal"
    LOW = 2, "2: low"
    LOWEST = 3, "3: lowest"


class BudgetDuration(models.TextChoices):
    """The calendar period after which a budget starts again."""

    HOUR = snapshot.BudgetDuration.HOUR, "Hour"
    DAY = snapshot.BudgetDuration.DAY, "Day"
    WEEK = snapshot.BudgetDuration.WEEK, "Week (from Monday)"
    MONTH = snapshot.BudgetDuration.MONTH, "Month"
