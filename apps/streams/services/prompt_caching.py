"""The prompt cache that a conversation begins with: by its name, or because it says the same."""

from collections.abc import Sequence

from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from headrace_wire.errors import InvalidRequestError
from headrace_wire.messages import ChatTurn, PromptCacheUse
from headrace_wire.prompt_caches import PromptCacheConfig
from headrace_wire.snapshot import DeploymentConfig


def prompt_cache_apply(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    conversation: Sequence[ChatTurn],
    name: str | None,
    *,
    stands_in_for: DeploymentConfig | None = None,
) -> tuple[Sequence[ChatTurn], PromptCacheUse | None]:
    """Return the conversation with the named prompt cache's messages before it, and which prompt cache it begins with.

    Without a name nothing is added; the longest of the tenant's that the conversation begins with is counted. Of a
    deployment that stands in for another one, which has the prompt cache, the messages are taken all the same.

    Raises:
        InvalidRequestError: the tenant has none of this name for the deployment; whether others do does not show.
    """
    caches = gateway.config.prompt_caches(caller, deployment)
    if name is not None:
        if (named := _named(caches, name)) is not None:
            return (*named.messages, *conversation), PromptCacheUse(named.id, named.tokens)
        asked = stands_in_for or deployment
        if (meant := _named(gateway.config.prompt_caches(caller, asked), name)) is not None:
            return (*meant.messages, *conversation), None
        raise InvalidRequestError(
            f"There is no prompt cache `{name}` for the model `{asked.name}`.", param="prompt_cache"
        )
    begun = [cache for cache in caches if tuple(conversation[: len(cache.messages)]) == cache.messages]
    longest = max(begun, key=lambda cache: (len(cache.messages), cache.tokens), default=None)
    return conversation, PromptCacheUse(longest.id, longest.tokens) if longest is not None else None


def _named(caches: Sequence[PromptCacheConfig], name: str) -> PromptCacheConfig | None:
    return next((cache for cache in caches if cache.name == name), None)
