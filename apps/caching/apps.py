"""Registration of the app."""

from django.apps import AppConfig


class CachingConfig(AppConfig):
    """What is not computed twice."""

    name = "apps.caching"
    verbose_name = "Caches"
