"""Prompt caches: beginnings of prompts that a tenant uses again and again, as gateways and workers know them."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace_wire.messages import ChatTurn
from headrace_wire.prefix_hashes import BLOCK_TOKENS

PINNED_SHARE = 0.5
"""Of a worker's KV cache that pinned prompt caches of all tenants may fill; the rest is for requests."""

_ENDINGS = ("a", "7", " x", "\n", "é", "你")
"""How a user may begin: a letter, a digit, what joins with white space before it, what takes several tokens."""
_DROPPED_TOKENS = 2


class PromptCacheConfig(Struct, frozen=True, kw_only=True):
    """One prompt cache of the configuration snapshot."""

    id: str
    tenant_id: str
    deployment: str
    """Its public name."""
    name: str
    version: int
    messages: tuple[ChatTurn, ...]
    pinned: bool = False
    """Workers compute it before anybody asks, and keep it."""
    tokens: int = 0
    """Length of the prefix; 0 where no worker has said yet how it tokenises."""
    cache_salt: str
    """The tenant's."""


def stable_prefix(render: Callable[[Sequence[ChatTurn]], list[int]], messages: Sequence[ChatTurn]) -> list[int]:
    """Return the token ids, in whole blocks, that a prompt with these messages begins with, whatever is said then.

    Where a message ends, the tokens of the next one may join with its last ones; `render` is asked for several next
    messages, and what they share counts.
    """
    prompts = [render([*messages, ChatTurn("user", ending)]) for ending in _ENDINGS]
    shared = 0
    for ids in zip(*prompts, strict=False):
        if len(set(ids)) > 1:
            break
        shared += 1
    shared = max(0, shared - _DROPPED_TOKENS)
    return prompts[0][: shared - shared % BLOCK_TOKENS]
