"""Registration of the app."""

from django.apps import AppConfig


class QuotasConfig(AppConfig):
    """Limits."""

    name = "apps.quotas"
    verbose_name = "Quotas"

    def ready(self) -> None:
        """Puts quotas into the configuration snapshot."""
        from apps.quotas import selectors  # noqa: PLC0415
        from apps.tenants import snapshots  # noqa: PLC0415

        snapshots.section_register("quotas", selectors.quota_configs)
