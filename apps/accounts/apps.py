"""Registration of the app."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """People and API keys."""

    name = "apps.accounts"
    verbose_name = "Accounts"

    def ready(self) -> None:
        """Puts API keys into the configuration snapshot, and ends sockets with the session that opened them."""
        from django.contrib.auth.signals import user_logged_out  # noqa: PLC0415

        from apps.accounts import selectors, services  # noqa: PLC0415
        from apps.tenants import snapshots  # noqa: PLC0415

        snapshots.section_register("api_keys", selectors.api_key_configs)
        user_logged_out.connect(services.session_end, dispatch_uid="accounts.session_end")
