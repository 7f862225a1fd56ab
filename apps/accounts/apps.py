"""Registration of the app."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """People and API keys."""

    name = "apps.accounts"
    verbose_name = "Accounts"

    def ready(self) -> None:
        """Puts API keys into the configuration snapshot."""
        from apps.accounts import selectors  # noqa: PLC0415
        from apps.tenants import snapshots  # noqa: PLC0415

        snapshots.section_register("api_keys", selectors.api_key_configs)
