"""Counts what prompt caches are good for: requests that begin with one, and how much of it was computed already."""

import logging
from collections import Counter

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire import redis_keys
from headrace_wire.messages import Ended, GenerateRequest
from headrace_worker.prefill_metrics import PrefillMetrics

log = logging.getLogger(__name__)

KEPT_SECONDS = 90 * 24 * 3600
MOST_CACHES = 1024
"""Counted at once between two flushes; further ones are not counted."""


class PromptCacheUse:
    """Sums by prompt cache that Redis has not got yet."""

    def __init__(self, prefills: PrefillMetrics) -> None:
        """`prefills` know how long this worker's engine takes for a token."""
        self._prefills = prefills
        self._sums: dict[str, Counter[str]] = {}

    def ended(self, request: GenerateRequest, ended: Ended) -> None:
        """Count a stream that has ended; one without a first token says nothing."""
        use, usage = request.prompt_cache, ended.usage
        if use is None or not usage.completion_tokens:
            return
        if use.cache_id not in self._sums and len(self._sums) >= MOST_CACHES:
            return
        found = min(usage.cached_tokens, use.tokens) if use.tokens else usage.cached_tokens
        sums = self._sums.setdefault(use.cache_id, Counter())
        sums["requests"] += 1
        if found and found * 2 >= use.tokens:
            sums["hits"] += 1
        sums["tokens"] += found
        sums["microseconds"] += int(found * self._prefills.seconds_per_token * 1e6)

    async def flush(self, redis: "Redis") -> None:
        """Add the sums to Redis' own. Where it does not answer, they wait for the next time."""
        if not self._sums:
            return
        sums, self._sums = self._sums, {}
        pipeline = redis.pipeline(transaction=True)
        for cache_id, values in sums.items():
            key = redis_keys.prompt_cache_use_key(cache_id)
            for name, value in values.items():
                pipeline.hincrby(key, name, value)
            pipeline.expire(key, KEPT_SECONDS)
        try:
            await pipeline.execute()
        except RedisError as error:
            log.warning("cannot count the use of prompt caches: %s", error)
            for cache_id, values in sums.items():
                self._sums.setdefault(cache_id, Counter()).update(values)
