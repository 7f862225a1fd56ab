"""Reads of response cache policies, and of what is kept."""

from apps.caching.models import ResponseCachePolicy
from apps.tenants.live_state import redis_client
from headrace_wire import redis_keys, response_cache_terms
from headrace_wire.response_cache_terms import ResponseCacheTerms


def response_cache_terms_all() -> list[ResponseCacheTerms]:
    """Returns the snapshot's section: every policy, those that are off among them."""
    return [
        ResponseCacheTerms(
            tenant_id=policy.tenant_id.hex,
            deployment_id=policy.deployment_id.hex if policy.deployment_id else None,
            enabled=policy.enabled,
            ttl_seconds=policy.ttl_minutes * 60,
            static=response_cache_terms.StaticRule(policy.static_rule),
            count_requests=policy.count_requests,
            count_tokens=policy.count_tokens,
            include_chat=policy.include_chat,
            max_bytes=policy.max_mebibytes * 2**20,
            semantic=policy.semantic,
            semantic_threshold=policy.semantic_threshold,
            semantic_same_words=policy.semantic_same_words,
            semantic_max_turns=policy.semantic_max_turns,
            generation=policy.generation,
        )
        for policy in ResponseCachePolicy.all_tenants.order_by("pk")
    ]


def kept_bytes(*, tenant_id: str) -> int:
    """Returns how much is kept for a tenant now, ended entries that nobody has swept yet among it.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    total = redis_client().hget(redis_keys.kept_answers_sizes_key(tenant_id), "total")
    return int(total) if isinstance(total, bytes) else 0
