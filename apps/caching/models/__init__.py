"""Prompt caches and policies for cached answers."""

from apps.caching.models.prompt_cache import PromptCache
from apps.caching.models.response_cache import ResponseCachePolicy

__all__ = ["PromptCache", "ResponseCachePolicy"]
