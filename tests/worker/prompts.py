"""Prompt caches as workers get them."""

from msgspec.structs import replace

from headrace_wire.messages import ChatTurn
from headrace_wire.prompt_caches import PromptCacheConfig

SYSTEM = "You answer questions about the tides, in one sentence, and you name your source. " * 12


def prompt_cache(name: str, deployment: str = "sim", **changes: object) -> PromptCacheConfig:
    """Return a pinned prompt cache of tenant `t`."""
    cache = PromptCacheConfig(
        id=name,
        tenant_id="t",
        deployment=deployment,
        name=name,
        version=1,
        messages=(ChatTurn("system", f"{name}: {SYSTEM}"),),
        pinned=True,
        cache_salt="salt",
    )
    return replace(cache, **changes)
