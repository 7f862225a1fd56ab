"""Registration of the app."""

from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    """Model deployments and their workers."""

    name = "apps.deployments"
    verbose_name = "Models"

    def ready(self) -> None:
        """Puts deployments and adapters into the configuration snapshot."""
        from apps.deployments import selectors  # noqa: PLC0415
        from apps.deployments.adapters.selectors import adapter_configs  # noqa: PLC0415
        from apps.tenants import snapshots  # noqa: PLC0415

        snapshots.section_register("deployments", selectors.deployment_configs)
        snapshots.section_register("adapters", adapter_configs)
