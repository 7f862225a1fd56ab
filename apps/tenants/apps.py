"""Registration of the app."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    """Lowest of the apps: everybody may use it, it uses none of them."""

    name = "apps.tenants"
    verbose_name = "Tenants"

    def ready(self) -> None:
        """Puts tenants into the configuration snapshot."""
        from apps.tenants import selectors, snapshots  # noqa: PLC0415

        snapshots.section_register("tenants", selectors.tenant_configs)
