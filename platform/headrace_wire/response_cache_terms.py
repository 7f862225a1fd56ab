"""What a response cache policy says, as the snapshot carries it."""

from enum import StrEnum

from msgspec import Struct

DEFAULT_TTL_SECONDS = 30 * 60
DEFAULT_MAX_BYTES = 64 * 2**20
DEFAULT_SEMANTIC_THRESHOLD = 0.95


class StaticRule(StrEnum):
    """Which requests have an answer that is worth keeping."""

    TEMPERATURE_ZERO = "temperature_zero"
    """Those at temperature 0, and those that ask for it."""
    OPT_IN = "opt_in"
    """Only those that ask for it (`cache: {"use-cache": true}`)."""


class ResponseCacheTerms(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One policy. The one that names the deployment counts before the one for all of the tenant's."""

    tenant_id: str
    deployment_id: str | None = None
    enabled: bool = True
    ttl_seconds: int = DEFAULT_TTL_SECONDS
    static: StaticRule = StaticRule.TEMPERATURE_ZERO
    count_requests: bool = True
    """Whether an answer from the cache counts as a request in quotas."""
    count_tokens: bool = False
    """Whether its tokens count in quotas and are charged, those of the prompt as cached ones."""
    include_chat: bool = False
    """Whether answers in the web chat are kept and given again, whatever their temperature."""
    semantic: bool = False
    """Whether a question is also given the answer to another one that asks for the same."""
    semantic_threshold: float = DEFAULT_SEMANTIC_THRESHOLD
    """Similarity from which on two questions may ask for the same."""
    semantic_same_words: bool = True
    """Whether they must do so with the same words, but for those that say little."""
    semantic_max_turns: int = 1
    """Messages of the user in a conversation that such an answer is given in, at most."""
    max_bytes: int = DEFAULT_MAX_BYTES
    """Of all that is kept for the tenant."""
    generation: int = 0
    """Rises with each purge: what was kept before is not found any more, whoever still writes it."""
