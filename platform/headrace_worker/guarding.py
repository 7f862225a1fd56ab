"""What a worker needs to guard its answers: policies, judges, the record, and the count of it all."""

import asyncio

from redis.asyncio import Redis

from headrace_guard.combination import Guard
from headrace_guard.policy_store import PolicyStore
from headrace_wire.intervention_log import InterventionLog
from headrace_wire.interventions import Intervention
from headrace_wire.policy_bodies import policy_bodies
from headrace_worker.guard_metrics import GuardMetrics
from headrace_worker.judging import Judges


class Guarding:
    """Holds the parts together; belongs to one event loop."""

    def __init__(self, redis: "Redis", judges: Judges, metrics: GuardMetrics) -> None:
        """Read policies from, and write records to, this Redis."""
        self.policies = PolicyStore(policy_bodies(redis), compiled=self._prepare)
        self.judges = judges
        self.interventions = InterventionLog(redis)
        self.metrics = metrics
        self._preparing: set[asyncio.Task[None]] = set()

    def report(self, record: Intervention) -> None:
        """Record and count what a guardrail did."""
        self.interventions.put(record)
        self.metrics.intervened(record)

    def _prepare(self, guard: Guard) -> None:
        """Have judges load what they need, so that the first window does not wait for it."""
        rules = {bound.rule.key: bound.rule for bound in (*guard.input_rules, *guard.output_rules)}
        if rules:
            task = asyncio.create_task(self.judges.prepare(rules.values()), name="prepare judges")
            self._preparing.add(task)
            task.add_done_callback(self._preparing.discard)
