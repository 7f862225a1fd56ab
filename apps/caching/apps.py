"""Registration of the app."""

from django.apps import AppConfig


class CachingConfig(AppConfig):
    """What is not computed twice."""

    name = "apps.caching"
    verbose_name = "Caches"

    def ready(self) -> None:
        """Puts prompt caches and policies into the configuration snapshot."""
        from apps.caching import prompt_selectors, response_selectors  # noqa: PLC0415
        from apps.tenants import snapshots  # noqa: PLC0415

        snapshots.section_register("prompt_caches", prompt_selectors.prompt_cache_configs)
        snapshots.section_register("response_caches", response_selectors.response_cache_terms_all)
