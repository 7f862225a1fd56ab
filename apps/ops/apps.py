"""Registration of the app."""

from django.apps import AppConfig


class OpsConfig(AppConfig):
    """What operators use."""

    name = "apps.ops"
    verbose_name = "Operation"

    def ready(self) -> None:
        """Registers the system checks."""
        from apps.ops import checks  # noqa: F401, PLC0415
