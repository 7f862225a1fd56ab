"""Registration of the app."""

from django.apps import AppConfig


class OpsConfig(AppConfig):
    """What operators use."""

    name = "apps.ops"
    verbose_name = "Operation"
