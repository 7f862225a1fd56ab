"""What a worker needs to guard its answers: policies, judges, the record, and the count of it all."""

import asyncio
from collections.abc import Sequence

from redis.asyncio import Redis

from headrace_guard.combination import Guard
from headrace_guard.policy_store import PolicyStore
from headrace_wire import redis_keys
from headrace_wire.functions import Reply
from headrace_wire.intervention_log import InterventionLog
from headrace_worker.guard_metrics import GuardMetrics
from headrace_worker.judging import Judges


class Guarding:
    """Holds the parts together; belongs to one event loop."""

    def __init__(self, redis: "Redis", judges: Judges, metrics: GuardMetrics) -> None:
        """Read policies from, and write records to, this Redis."""
        self._redis = redis
        self.policies = PolicyStore(self._fetch, compiled=self._prepare)
        self.judges = judges
        self.interventions = InterventionLog(redis)
        self.metrics = metrics
        self._preparing: set[asyncio.Task[None]] = set()

    async def _fetch(self, digests: Sequence[str]) -> list[bytes | None]:
        bodies: Reply = await self._redis.mget([redis_keys.guard_policy_key(digest) for digest in digests])
        return list(bodies)

    def _prepare(self, guard: Guard) -> None:
        """Have judges load what they need, so that the first window does not wait for it."""
        rules = {bound.rule.key: bound.rule for bound in (*guard.input_rules, *guard.output_rules)}
        if rules:
            task = asyncio.create_task(self.judges.prepare(rules.values()), name="prepare judges")
            self._preparing.add(task)
            task.add_done_callback(self._preparing.discard)
