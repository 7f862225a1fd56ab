"""The life of a decision: recorded as under way, then done, failed, expired or withdrawn.

Whoever carries one out holds its lease. Should that process die, the next tick after the lease goes on from what the
row says; what is done twice then is an absolute number. Fewer workers are had in two steps: the victims drain, and a
later tick has them end, when nothing is left on them or their time is over.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db.models import Q

from apps.deployments.autoscale.drains import victims_drain, victims_resume
from apps.deployments.autoscale.enums import AutoscaleMode, DecisionResult, Rule
from apps.deployments.autoscale.executors.choice import executor_of
from apps.deployments.autoscale.executors.protocol import Executor, ExecutorError, Victim
from apps.deployments.autoscale.loads import loads_of
from apps.deployments.autoscale.schedules import bounds_at
from apps.deployments.autoscale.terms import Sample
from apps.deployments.models import AutoscalePolicy, ScalingDecision
from headrace_wire.fleet import WorkerInfo, WorkerState

logger = structlog.get_logger(__name__)

LEASE_TICKS = 2
EXPIRES_TICKS = 8
"""After its drain at the latest: what it was decided on is no longer so."""
_BY_LOAD = {Rule.SCALE_IN, Rule.IDLE}


def carry_out(decision: ScalingDecision, policy: AutoscalePolicy, workers: Sequence[WorkerInfo], now: datetime) -> None:
    """Takes a decision that is under way as far as it can be taken now, unless another process does so.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; a later tick goes on.
    """
    if not _lease(decision, now):
        return
    try:
        executor = executor_of(policy, workers)
        if decision.target < decision.before and not _has_drained(decision, policy, executor, workers, now):
            ScalingDecision.objects.filter(pk=decision.pk).update(lease_until=None)
            return
        executor.scale_to(_count(decision, executor, workers), _victims(decision))
    except ExecutorError as error:
        _end(decision, DecisionResult.FAILED, str(error), now)
        _resume(decision)
    else:
        _end(decision, DecisionResult.DONE, "", now)


def _count(decision: ScalingDecision, executor: Executor, workers: Sequence[WorkerInfo]) -> int:
    """How many the executor is to run. Of more workers, those that sleep are woken first."""
    asleep = [one for one in workers if one.state is WorkerState.SLEEPING]
    if decision.target <= decision.before or not asleep:
        return decision.target
    current = executor.current()
    woken = asleep[: max(0, decision.target - (current - len(asleep)))]
    victims_resume([Victim(one.incarnation, one.host, one.pid) for one in woken])
    return max(current, decision.target)


def go_on(
    decision: ScalingDecision,
    policy: AutoscalePolicy | None,
    sample: Sample | None,
    workers: Sequence[WorkerInfo],
    now: datetime,
) -> None:
    """Goes on with a decision of an earlier tick, or ends it where it is too old or no longer right."""
    tick = settings.HEADRACE_AUTOSCALE_SECONDS
    if policy is None or policy.mode != AutoscaleMode.ON:
        _give_up(decision, DecisionResult.WITHDRAWN, "The policy is off.", now)
    elif now > (decision.drain_until or decision.at) + timedelta(seconds=EXPIRES_TICKS * tick):
        _give_up(decision, DecisionResult.EXPIRED, "It was not carried out in time.", now)
    elif sample is not None and _is_overtaken(decision, policy, sample, now):
        _give_up(decision, DecisionResult.WITHDRAWN, "The load came back while workers drained.", now)
    else:
        carry_out(decision, policy, workers, now)


def _is_overtaken(decision: ScalingDecision, policy: AutoscalePolicy, sample: Sample, now: datetime) -> bool:
    if decision.rule not in _BY_LOAD:
        return False
    if not sample.ready:
        return sample.waiting > 0
    terms = policy.terms
    return loads_of(terms, sample, bounds_at(terms, now).load_factor).out[1] > terms.scale_out_share


def _has_drained(
    decision: ScalingDecision,
    policy: AutoscalePolicy,
    executor: Executor,
    workers: Sequence[WorkerInfo],
    now: datetime,
) -> bool:
    if decision.drain_until is None:
        _begin_drain(decision, policy, executor, workers, now)
        return not decision.victims
    alive = {one.incarnation: one for one in workers}
    left = [alive[victim.incarnation] for victim in _victims(decision) if victim.incarnation in alive]
    return now >= decision.drain_until or all(_is_empty(one) for one in left)


def _begin_drain(
    decision: ScalingDecision,
    policy: AutoscalePolicy,
    executor: Executor,
    workers: Sequence[WorkerInfo],
    now: datetime,
) -> None:
    # Who drains by another's order is as good as gone, and goes first.
    order = [one for one in workers if one.state is WorkerState.DRAINING]
    order += executor.leaving_order([one for one in workers if one.state is not WorkerState.DRAINING])
    chosen = [
        Victim(one.incarnation, one.host, one.pid, was_draining=one.state is WorkerState.DRAINING)
        for one in order[: decision.before - decision.target]
    ]
    decision.victims = [asdict(victim) for victim in chosen]
    decision.drain_until = now + timedelta(seconds=policy.drain_seconds)
    decision.save(update_fields=["victims", "drain_until"])
    reason = f"autoscale: {decision.before} to {decision.target} workers"
    victims_drain(chosen, reason=reason, deadline_seconds=policy.drain_seconds)


def _is_empty(worker: WorkerInfo) -> bool:
    left = worker.num_requests_running + worker.num_requests_waiting + worker.num_requests_held
    return worker.state is WorkerState.DRAINING and not left


def _resume(decision: ScalingDecision) -> None:
    """Has the victims go on, but for those that drain by another's order."""
    victims_resume([victim for victim in _victims(decision) if not victim.was_draining])


def _victims(decision: ScalingDecision) -> list[Victim]:
    return [Victim(**victim) for victim in decision.victims]


def _lease(decision: ScalingDecision, now: datetime) -> bool:
    until = now + timedelta(seconds=LEASE_TICKS * settings.HEADRACE_AUTOSCALE_SECONDS)
    free = Q(lease_until=None) | Q(lease_until__lte=now)
    rows = ScalingDecision.objects.filter(free, pk=decision.pk, result=DecisionResult.DECIDED)
    return rows.update(lease_until=until) == 1


def _give_up(decision: ScalingDecision, result: DecisionResult, why: str, now: datetime) -> None:
    if _lease(decision, now):
        _resume(decision)
        _end(decision, result, why, now)


def _end(decision: ScalingDecision, result: DecisionResult, text: str, now: datetime) -> None:
    rows = ScalingDecision.objects.filter(pk=decision.pk, result=DecisionResult.DECIDED)
    if rows.update(result=result, result_text=text, ended_at=now, lease_until=None):
        decision.result, decision.result_text, decision.ended_at = result, text, now
        logger.info(
            "scaling_decision_ended",
            deployment=decision.deployment.name,
            before=decision.before,
            target=decision.target,
            rule=decision.rule,
            result=result.value,
            text=text,
        )
