"""The admin of prompt caches and policies for cached answers."""

from apps.caching.admin.prompt_cache import PromptCacheAdmin
from apps.caching.admin.response_cache import ResponseCachePolicyAdmin

__all__ = ["PromptCacheAdmin", "ResponseCachePolicyAdmin"]
