"""The admin of prompt caches and policies for cached answers."""

from apps.caching.admin.response_cache import ResponseCachePolicyAdmin

__all__ = ["ResponseCachePolicyAdmin"]
