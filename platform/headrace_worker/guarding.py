"""What a worker needs to guard its answers: policies, judges, the record, and the count of it all."""

from collections.abc import Sequence
from typing import Self

from redis.asyncio import Redis

from headrace_guard.policy_store import PolicyStore
from headrace_wire import redis_keys
from headrace_wire.functions import Reply
from headrace_wire.intervention_log import InterventionLog
from headrace_worker.guard_metrics import GuardMetrics
from headrace_worker.judging import Judges


class Guarding:
    """Holds the parts together; belongs to one event loop."""

    def __init__(
        self, policies: PolicyStore, judges: Judges, interventions: InterventionLog, metrics: GuardMetrics
    ) -> None:
        self.policies = policies
        self.judges = judges
        self.interventions = interventions
        self.metrics = metrics

    @classmethod
    def create(cls, redis: "Redis", judges: Judges, metrics: GuardMetrics) -> Self:
        """Return what reads policies from, and writes records to, this Redis."""

        async def fetch(digests: Sequence[str]) -> list[bytes | None]:
            bodies: Reply = await redis.mget([redis_keys.guard_policy_key(digest) for digest in digests])
            return list(bodies)

        return cls(PolicyStore(fetch), judges, InterventionLog(redis), metrics)
