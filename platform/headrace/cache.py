"""Django's Redis cache, counted like django-prometheus counts.

django-prometheus' own backend for it lives in a module that imports the `django-redis` package, which we do not use.
"""

from django.core.cache.backends.redis import RedisCache
from django_prometheus.cache.metrics import (
    django_cache_get_fail_total,
    django_cache_get_total,
    django_cache_hits_total,
    django_cache_misses_total,
)

_BACKEND = "redis"
_MISSING = object()


class MeteredRedisCache(RedisCache):
    """Counts gets, hits, misses and failures of the cache."""

    def get(self, key: object, default: object = None, version: int | None = None) -> object:
        """Returns the cached value, or `default`."""
        django_cache_get_total.labels(backend=_BACKEND).inc()
        try:
            value: object = super().get(key, _MISSING, version)
        except Exception:
            django_cache_get_fail_total.labels(backend=_BACKEND).inc()
            raise
        if value is _MISSING:
            django_cache_misses_total.labels(backend=_BACKEND).inc()
            return default
        django_cache_hits_total.labels(backend=_BACKEND).inc()
        return value
