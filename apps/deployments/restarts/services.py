"""Writes of restarts, and the task that drives them.

A step is stored before it is carried out: an order that was lost with its sender is given again by the next run, and
one that is given twice does no harm.
"""

import asyncio
from collections.abc import Mapping
from uuid import UUID

import structlog
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from apps.deployments.fleet_mirror import registrations_read
from apps.deployments.models import ModelDeployment, RollingRestart
from apps.deployments.restarts.enums import RestartState
from apps.deployments.restarts.selectors import is_outdated, process_of, restart_last, restart_running, wanted_options
from apps.deployments.restarts.steps import Finish, Order, Replaced, Stop, Wait, next_step
from apps.tenants.enums import AuditAction
from apps.tenants.services import Actor, audit_record
from headrace_wire.draining import NotThereError, restart_worker
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.redis_client import connect

logger = structlog.get_logger(__name__)

Workers = Mapping[str, WorkerInfo]

DRAIN_SECONDS = 300.0
"""How long a worker's streams may go on before they are handed over, to be continued elsewhere."""

STEPS_AT_ONCE = 3
"""Steps of one restart in one run: one that is done leads to the next."""


@transaction.atomic
def restart_begin(*, deployment: ModelDeployment, actor: Actor = None) -> RollingRestart:
    """Begins to restart the deployment's workers that run older options, one after another.

    Raises:
        ValidationError: One goes on already, or all run the present options.
        redis.exceptions.RedisError: Redis does not answer.
    """
    row = ModelDeployment.objects.select_for_update().get(pk=deployment.pk)
    if restart_running(deployment=row) is not None:
        raise ValidationError(_("A restart of these workers goes on already."), code="running")
    wanted, workers = wanted_options(row), _workers_of(row.name)
    if not any(is_outdated(info, wanted) for info in workers.values()):
        raise ValidationError(_("All workers run the present options."), code="current")
    ready = sum(info.state is WorkerState.READY for info in workers.values())
    restart = RollingRestart.objects.create(deployment=row, options=wanted, size=ready)
    audit_record(
        tenant=None, actor=actor, action=AuditAction.RESTART_BEGUN, target=row, details={"workers": [None, ready]}
    )
    return restart


@transaction.atomic
def restart_stop(*, restart: RollingRestart, reason: str, actor: Actor = None) -> None:
    """Ends a restart where it is; a worker that was told to end still does, and is replaced."""
    row = RollingRestart.objects.select_for_update().get(pk=restart.pk)
    if row.state == RestartState.RUNNING:
        _end(row, RestartState.STOPPED, reason)
        audit_record(
            tenant=None,
            actor=actor,
            action=AuditAction.RESTART_STOPPED,
            target=row.deployment,
            details={"reason": [None, reason]},
        )


def restarts_advance() -> int:
    """Does what can be done now of all restarts, and begins those that deployments ask for; returns how many steps.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; nothing is decided without it.
    """
    _begin_wanted()
    done = 0
    for restart_id in RollingRestart.objects.filter(state=RestartState.RUNNING).values_list("pk", flat=True):
        for _number in range(STEPS_AT_ONCE):
            if not _advance(restart_id):
                break
            done += 1
    return done


def _begin_wanted() -> None:
    """Begins restarts where options have changed; what was stopped is not tried again with the same options."""
    for deployment in ModelDeployment.objects.filter(restarts_workers=True):
        last = restart_last(deployment=deployment)
        wanted = wanted_options(deployment)
        is_settled = last is not None and (
            last.state == RestartState.RUNNING or (last.state == RestartState.STOPPED and last.options == wanted)
        )
        if is_settled or not any(is_outdated(info, wanted) for info in _workers_of(deployment.name).values()):
            continue
        try:
            restart_begin(deployment=deployment)
        except ValidationError as error:  # somebody was faster
            logger.info("restart_not_begun", deployment=deployment.name, reason=str(error))


def _advance(restart_id: UUID) -> bool:
    """Decides and stores the next step, then carries it out; returns whether there was one."""
    with transaction.atomic():
        rows = RollingRestart.objects.select_for_update(skip_locked=True, of=("self",)).select_related("deployment")
        restart = rows.filter(pk=restart_id, state=RestartState.RUNNING).first()
        if restart is None:  # ended, or another run has it
            return False
        workers = _workers_of(restart.deployment.name)
        step = next_step(restart, workers, wanted_options(restart.deployment), timezone.now())
        match step:
            case Wait():
                return False
            case Order(worker):
                _note_order(restart, worker, workers)
            case Replaced():
                restart.restarted += 1
                restart.current, restart.known, restart.current_since = "", [], timezone.now()
                restart.save(update_fields=["restarted", "current", "known", "current_since"])
            case Finish():
                _end(restart, RestartState.DONE, "")
            case Stop(reason):
                _end(restart, RestartState.STOPPED, reason)
                audit_record(
                    tenant=None,
                    actor=None,
                    action=AuditAction.RESTART_STOPPED,
                    target=restart.deployment,
                    details={"reason": [None, reason]},
                )
    logger.info("restart_step", deployment=restart.deployment.name, step=type(step).__name__)
    if isinstance(step, Order):
        _tell(step.worker)
        return False
    return isinstance(step, Replaced)


def _note_order(restart: RollingRestart, worker: WorkerInfo, workers: Workers) -> None:
    if not restart.current:
        restart.current_since = timezone.now()
        others = sorted(process_of(info) for info in workers.values() if info is not worker)
        restart.known = [process_of(worker), *others]
    restart.current = worker.incarnation
    restart.save(update_fields=["current", "current_since", "known"])


def _tell(worker: WorkerInfo) -> None:
    try:
        asyncio.run(_send(worker.incarnation))
    except NotThereError:
        logger.info("restart_worker_gone", incarnation=worker.incarnation)  # its successor is waited for all the same


async def _send(incarnation: str) -> None:
    client = connect(settings.REDIS_URL)
    try:
        await restart_worker(client, incarnation, reason="changed engine options", deadline_seconds=DRAIN_SECONDS)
    finally:
        await client.aclose()


def _end(restart: RollingRestart, state: RestartState, reason: str) -> None:
    restart.state, restart.reason, restart.finished_at = state, reason, timezone.now()
    restart.save(update_fields=["state", "reason", "finished_at"])


def _workers_of(name: str) -> dict[str, WorkerInfo]:
    alive = registrations_read().alive
    return {incarnation: info for incarnation, info in alive.items() if info.deployment == name}
