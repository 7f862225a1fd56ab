"""Registration of the app."""

from django.apps import AppConfig


class CachingConfig(AppConfig):
    """What is not computed twice."""

    name = "apps.caching"
    verbose_name = "Caches"

    def ready(self) -> None:
        """Puts prompt caches and policies into the configuration snapshot, and drops what is kept with its tenant."""
        from apps.caching import prompt_selectors, response_selectors, tenant_removal  # noqa: PLC0415
        from apps.tenants import removal, snapshots  # noqa: PLC0415

        snapshots.section_register("prompt_caches", prompt_selectors.prompt_cache_configs)
        snapshots.section_register("response_caches", response_selectors.response_cache_terms_all)
        removal.removal_register(tenant_removal.caches_drop_prepare)
