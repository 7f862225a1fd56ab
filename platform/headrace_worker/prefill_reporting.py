"""Tells the control plane which prompt caches are warm at this worker."""

import logging
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire import codec, redis_keys
from headrace_wire.messages import Prefill
from headrace_wire.prefill_reports import PrefillReport

log = logging.getLogger(__name__)

WARMTH_SECONDS = 24 * 3600


class PrefillReports:
    """Stores reports under the worker's incarnation, whichever it has then."""

    def __init__(self, redis: "Redis", incarnation: Callable[[], str]) -> None:
        self._redis = redis
        self._incarnation = incarnation

    async def store(self, prefill: Prefill, report: PrefillReport) -> None:
        """Store a report. Without Redis there is none; the next prefill makes one."""
        key = redis_keys.prefix_warmth_key(prefill.prefill_id)
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hset(key, self._incarnation(), codec.encode(report))
        pipeline.expire(key, WARMTH_SECONDS)
        try:
            await pipeline.execute()
        except RedisError as error:
            log.warning("cannot report a prefix: %s", error)
