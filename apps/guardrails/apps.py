"""Registration of the app."""

from django.apps import AppConfig


class GuardrailsConfig(AppConfig):
    """What may be said."""

    name = "apps.guardrails"
    verbose_name = "Guardrails"

    def ready(self) -> None:
        """Puts policies into the configuration snapshot, and their bodies beside it."""
        from apps.guardrails import publication, selectors  # noqa: PLC0415
        from apps.tenants import snapshots  # noqa: PLC0415

        snapshots.section_register("guardrails", selectors.guard_attachments, prepare=publication.bodies_ensure)
