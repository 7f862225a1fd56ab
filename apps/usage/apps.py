"""Registration of the app."""

from django.apps import AppConfig


class UsageConfig(AppConfig):
    """The ledger."""

    name = "apps.usage"
    verbose_name = "Usage"
