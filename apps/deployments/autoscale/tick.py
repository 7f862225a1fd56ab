"""One beat of the autoscaler: each policy's deployment is measured, decided on, and what was decided is carried out.

Two beats give one step: sample and decision are rows that are unique by deployment and tick, written in one
transaction; who comes second finds them there and stops.
"""

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone
from redis.exceptions import RedisError

from apps.deployments.autoscale import carrying_out
from apps.deployments.autoscale.decide import decide, samples_needed
from apps.deployments.autoscale.enums import AutoscaleMode, DecisionResult, ExecutorKind
from apps.deployments.autoscale.executors.choice import executor_of
from apps.deployments.autoscale.executors.protocol import ExecutorError
from apps.deployments.autoscale.measuring import Measured, measure
from apps.deployments.autoscale.terms import Decision, PolicyTerms, Rule, Sample, ScalingState
from apps.deployments.fleet_mirror import Registrations, registrations_read
from apps.deployments.models import AutoscalePolicy, ScalingDecision, ScalingSample
from headrace_wire.fleet import WorkerInfo, WorkerState

logger = structlog.get_logger(__name__)

RETRY_TICKS = 4
"""After a failure, before the same is tried again."""
WAKE_SECONDS = 3.0
"""Between two looks for requests that wait where no worker runs."""
SAMPLES_KEPT, DECISIONS_KEPT = timedelta(days=14), timedelta(days=90)

_SAMPLE_FIELDS = tuple(field.name for field in fields(Sample))
_CHANGED = (DecisionResult.DONE, DecisionResult.SHADOW, DecisionResult.RECOMMENDED)


def autoscale_tick(*, now: datetime | None = None) -> int:
    """Looks at all deployments with a policy; returns how many decisions were made.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    now = now or timezone.now()
    registrations = registrations_read()
    for decision in ScalingDecision.objects.filter(result=DecisionResult.DECIDED, deployment__autoscale_policy=None):
        carrying_out.go_on(decision, None, None, [], now)
    policies = _in_order(AutoscalePolicy.objects.all())
    at = tick_of(now, settings.HEADRACE_AUTOSCALE_SECONDS)
    return sum(_Beat(policy, registrations, at, now).run() for policy in policies)


def autoscale_wake(*, now: datetime | None = None) -> int:
    """Looks only for who waits where no worker runs, more often than a tick; returns how many decisions were made.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    now = now or timezone.now()
    policies = _in_order(AutoscalePolicy.objects.filter(mode=AutoscaleMode.ON, min_workers=0))
    if not policies:
        return 0
    registrations = registrations_read()
    at = tick_of(now, WAKE_SECONDS)
    beats = (_Beat(policy, registrations, at, now) for policy in policies)
    return sum(beat.run() for beat in beats if not beat.workers and beat.somebody_waits())


def autoscale_clean(*, now: datetime | None = None) -> int:
    """Deletes samples and decisions that nobody looks at any more; returns how many."""
    now = now or timezone.now()
    samples, _ = ScalingSample.objects.filter(at__lt=now - SAMPLES_KEPT).delete()
    decisions, _ = ScalingDecision.objects.filter(at__lt=now - DECISIONS_KEPT).delete()
    return samples + decisions


def tick_of(now: datetime, seconds: float) -> datetime:
    """Returns the beginning of the tick that `now` is in: the same for everybody who beats."""
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)


def sample_of(row: ScalingSample) -> Sample:
    """Returns what was measured."""
    return Sample(**{name: getattr(row, name) for name in _SAMPLE_FIELDS})


def _in_order(policies: QuerySet[AutoscalePolicy]) -> list[AutoscalePolicy]:
    """Returns policies as their workers are to be started: what loads first, first."""
    return list(policies.select_related("deployment").order_by("deployment__preload_priority", "deployment__name"))


class _Beat:
    """One tick of one policy."""

    def __init__(self, policy: AutoscalePolicy, registrations: Registrations, at: datetime, now: datetime) -> None:
        self.policy = policy
        self.terms: PolicyTerms = policy.terms
        self.name = policy.deployment.name
        self.workers: Sequence[WorkerInfo] = [
            one for one in registrations.alive.values() if one.deployment == self.name
        ]
        self.at = at
        self.now = now

    def run(self) -> int:
        rows = ScalingSample.objects.filter(deployment=self.policy.deployment)
        if rows.filter(at=self.at).exists():
            return 0
        before = list(rows.filter(at__gte=self.at - samples_needed(self.terms), at__lt=self.at).order_by("at"))
        try:
            measured = measure(
                self.policy.deployment, self.at, self.workers, before, tick_seconds=settings.HEADRACE_AUTOSCALE_SECONDS
            )
            under_way = self._go_on(measured.sample)
            decision, workers = self._decided([*map(sample_of, before), measured.sample])
            made = self._record(measured, decision, None if under_way or self._failed_lately() else workers)
            if made is not None and made.result == DecisionResult.DECIDED:
                carrying_out.carry_out(made, self.policy, self.workers, self.now)
        except RedisError as error:
            logger.warning("autoscale_tick_failed", deployment=self.name, error=str(error))
            return 0
        return int(made is not None)

    def somebody_waits(self) -> bool:
        deployment, seconds = self.policy.deployment, self.terms.tick_seconds
        return measure(deployment, self.at, self.workers, [], tick_seconds=seconds).sample.waiting > 0

    def _go_on(self, sample: Sample) -> bool:
        rows = ScalingDecision.objects.filter(deployment=self.policy.deployment, result=DecisionResult.DECIDED)
        decision = rows.select_related("deployment").first()
        if decision is None:
            return False
        carrying_out.go_on(decision, self.policy, sample, self.workers, self.now)
        return True

    def _decided(self, samples: Sequence[Sample]) -> tuple[Decision | None, int]:
        """Returns what is to be, and the workers until then: with those that sleep, where these go too."""
        if self.policy.mode == AutoscaleMode.OFF:
            return None, 0
        try:
            current = executor_of(self.policy, self.workers).current()
            self._note("")
        except ExecutorError as error:
            # It is decided all the same, by who is there; should something be to do, carrying it out says why not.
            current = sum(one.state is not WorkerState.DRAINING for one in self.workers)
            self._note(str(error))
        sleeping = min(current, samples[-1].sleeping)
        state = self._state(current - sleeping, sleeping)
        decision = decide(self.terms, samples, self.now, state)
        is_fewer = decision.target < state.current or decision.rule is Rule.IDLE
        return decision, current if is_fewer else state.current

    def _state(self, current: int, sleeping: int) -> ScalingState:
        rows = ScalingDecision.objects.filter(
            deployment=self.policy.deployment, mode=self.policy.mode, result__in=_CHANGED
        )
        last = rows.order_by("-at", "-pk").first()
        if last is None:
            return ScalingState(current=current, sleeping=sleeping)
        changed_at, has_grown = last.ended_at or last.at, last.target > last.before
        return ScalingState(current=current, sleeping=sleeping, changed_at=changed_at, has_grown=has_grown)

    def _failed_lately(self) -> bool:
        since = self.now - timedelta(seconds=RETRY_TICKS * settings.HEADRACE_AUTOSCALE_SECONDS)
        rows = ScalingDecision.objects.filter(deployment=self.policy.deployment, result=DecisionResult.FAILED)
        return rows.filter(ended_at__gt=since).exists()

    def _record(self, measured: Measured, decision: Decision | None, current: int | None) -> ScalingDecision | None:
        """Writes both rows, or none where this tick has been; returns the decision that changes something."""
        values = {name: getattr(measured.sample, name) for name in _SAMPLE_FIELDS}
        if decision is not None:
            values |= {"target": decision.target, "rule": decision.rule.value, "reason": decision.reason}
        try:
            with transaction.atomic():
                ScalingSample.objects.create(deployment=self.policy.deployment, claims=measured.claims, **values)
                if decision is None or current is None or decision.target == current:
                    return None
                return self._decision_create(decision, current)
        except IntegrityError:
            return None

    def _decision_create(self, decision: Decision, current: int) -> ScalingDecision:
        result = DecisionResult.DECIDED
        if self.policy.mode == AutoscaleMode.SHADOW:
            result = DecisionResult.SHADOW
        elif self.policy.executor == ExecutorKind.RECOMMEND:
            result = DecisionResult.RECOMMENDED
        return ScalingDecision.objects.create(
            deployment=self.policy.deployment,
            at=self.at,
            mode=self.policy.mode,
            executor=self.policy.executor,
            before=current,
            target=decision.target,
            rule=decision.rule.value,
            reason=decision.reason,
            inputs=decision.inputs,
            result=result,
            ended_at=None if result is DecisionResult.DECIDED else self.now,
        )

    def _note(self, error: str) -> None:
        """Keeps what the executor said last on the policy."""
        if error != self.policy.last_error:
            at = self.now if error else None
            AutoscalePolicy.objects.filter(pk=self.policy.pk).update(last_error=error, last_error_at=at)
