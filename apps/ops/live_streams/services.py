"""What operators do to live streams and to the processes that serve them. Each act has its row in the audit trail.

An act whose order cannot be given raises `ValidationError` with what to do instead, and leaves no row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from asgiref.sync import async_to_sync
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from apps.ops.live_streams import orders
from apps.ops.live_streams.fleet import Fleet, fleet_read
from apps.ops.live_streams.orders import Standing
from apps.ops.live_streams.selectors import LiveStream, live_streams_get
from apps.ops.models import FleetProcess
from apps.ops.models import LiveStream as StreamName
from apps.tenants.enums import AuditAction
from apps.tenants.models import Tenant
from apps.tenants.services import Actor, audit_record
from headrace_wire.draining import NotThereError
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.messages import StreamState

MOST_AT_ONCE = 500
"""Streams of one act."""

LONGEST_DRAIN_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one stream."""

    stream_id: str
    is_done: bool
    said: str


def streams_kill(
    *, stream_ids: Sequence[str], note: str = "", actor: Actor = None, wait_seconds: float
) -> list[Outcome]:
    """Ends streams; waits until their engines have let them go, which comes all the same where it comes later.

    Raises:
        ValidationError: Too many, none of them is alive, or Redis does not answer.
    """
    streams = _alive(stream_ids)
    with _orderly(), transaction.atomic():
        _audit(AuditAction.STREAM_KILLED, streams, note, actor)
        tenants = {stream.stream_id: stream.tenant_id for stream in streams}
        standings = async_to_sync(orders.kill)(tenants, wait_seconds=wait_seconds)
    return _told(stream_ids, standings, _kill_told)


def streams_migrate(
    *, stream_ids: Sequence[str], note: str = "", actor: Actor = None, wait_seconds: float
) -> list[Outcome]:
    """Gives streams to other workers of their deployments, which continue them exactly; waits until these have them.

    Raises:
        ValidationError: One of them cannot be moved; then none is.
    """
    streams = _alive(stream_ids)
    with _orderly():
        fleet = fleet_read()
    for stream in streams:
        _check_movable(stream, fleet)
    with _orderly(), transaction.atomic():
        _audit(AuditAction.STREAM_MIGRATED, streams, note, actor)
        before = async_to_sync(orders.standings_read)([stream.stream_id for stream in streams])
        owned = {name: standing for name, standing in before.items() if standing.owner and not standing.has_ended}
        after = async_to_sync(orders.migrate)(owned, note=note, wait_seconds=wait_seconds)

    def told(stream_id: str, now: Standing) -> Outcome:
        return _migrate_told(stream_id, owned[stream_id], now)

    return _told(stream_ids, after, told)


def worker_drain(
    *, incarnation: str, deadline_seconds: float, leave: bool = False, note: str = "", actor: Actor = None
) -> None:
    """Has a worker take nothing more, and hand over at the deadline what it still has.

    Raises:
        ValidationError: It is gone or about to end, or the deadline is none.
    """
    if not 0 <= deadline_seconds <= LONGEST_DRAIN_SECONDS:
        raise ValidationError(
            _("Give the streams between 0 and %(most)d seconds.") % {"most": LONGEST_DRAIN_SECONDS}, code="deadline"
        )
    worker = _worker(incarnation)
    if worker.is_leaving:
        raise ValidationError(_("This worker is ending already; nothing more is needed."), code="leaving")
    details = {"deployment": worker.deployment, "seconds": deadline_seconds, "ends": leave, "note": note}
    with _orderly(), transaction.atomic():
        _audit_process(AuditAction.WORKER_DRAINED, incarnation, details, actor)
        async_to_sync(orders.worker_drain)(incarnation, note=note, deadline_seconds=deadline_seconds, leave=leave)


def worker_resume(*, incarnation: str, actor: Actor = None) -> bool:
    """Has a drained worker take streams again, or a quarantined one start its engine; returns whether it was that.

    Raises:
        ValidationError: It is gone, about to end, or neither of the two.
    """
    worker = _worker(incarnation)
    if worker.is_leaving:
        raise ValidationError(
            _("This worker was told to end, which cannot be called back; start another one."), code="leaving"
        )
    is_quarantined = bool(worker.quarantined_at)
    if worker.state is not WorkerState.DRAINING and not is_quarantined:
        raise ValidationError(_("This worker is not drained: it takes streams."), code="not_drained")
    details = {"deployment": worker.deployment, "quarantined": is_quarantined}
    with _orderly(), transaction.atomic():
        _audit_process(AuditAction.WORKER_RESUMED, incarnation, details, actor)
        async_to_sync(orders.worker_resume)(incarnation)
    return is_quarantined


def gateway_drain(*, incarnation: str, note: str = "", actor: Actor = None) -> None:
    """Has a gateway end as SIGTERM does: it finishes what it can and tells its clients to come back elsewhere.

    Raises:
        ValidationError: It is gone, ending already, or the only one.
    """
    with _orderly():
        fleet = fleet_read()
    gateway = fleet.gateways.get(incarnation)
    if gateway is None:
        raise _gone(incarnation)
    if gateway.state is WorkerState.DRAINING:
        raise ValidationError(_("This gateway is draining already; nothing more is needed."), code="draining")
    if not fleet.other_gateways(incarnation):
        raise ValidationError(
            _("This is the only gateway: nobody could reach the service, nor this page. Start another one first."),
            code="last",
        )
    with _orderly(), transaction.atomic():
        _audit_process(AuditAction.GATEWAY_DRAINED, incarnation, {"streams": gateway.streams, "note": note}, actor)
        async_to_sync(orders.gateway_drain)(incarnation, note=note)


# ---- checks


def _alive(stream_ids: Sequence[str]) -> list[LiveStream]:
    if not stream_ids:
        raise ValidationError(_("Choose at least one stream."), code="none")
    if len(stream_ids) > MOST_AT_ONCE:
        raise ValidationError(
            _("At most %(most)d streams at once; choose fewer, or drain their worker.") % {"most": MOST_AT_ONCE},
            code="too_many",
        )
    with _orderly():
        streams = live_streams_get(stream_ids=stream_ids)
    if not streams:
        raise ValidationError(_("These streams have ended meanwhile; there is nothing to do."), code="ended")
    return streams


def _check_movable(stream: LiveStream, fleet: Fleet) -> None:
    worker = fleet.workers.get(stream.worker)
    if stream.state not in {StreamState.RUNNING, StreamState.HELD} or worker is None:
        raise ValidationError(
            _("%(stream)s is at no worker (%(state)s): whichever has a place takes it. Leave it out.")
            % {"stream": stream.stream_id, "state": stream.state.value},
            code="no_worker",
        )
    if not fleet.others_ready(worker):
        raise ValidationError(
            _("No other worker of %(deployment)s is ready. Start one first, or end the stream.")
            % {"deployment": stream.deployment},
            code="nowhere",
        )


def _worker(incarnation: str) -> WorkerInfo:
    with _orderly():
        worker = fleet_read().workers.get(incarnation)
    if worker is None:
        raise _gone(incarnation)
    return worker


def _gone(incarnation: str) -> ValidationError:
    return ValidationError(
        _("%(process)s has ended, or lost its lease. Its streams go on elsewhere by themselves; reload the page.")
        % {"process": incarnation[:64]},
        code="gone",
    )


@contextmanager
def _orderly() -> Iterator[None]:
    """Turns what can go wrong on the way to Redis into words for the operator."""
    try:
        yield
    except NotThereError as error:
        raise _gone(str(error)) from error
    except (RedisError, OSError) as error:
        raise ValidationError(
            _("The stream store does not answer, so nothing is certain; look again and repeat it."), code="store"
        ) from error


# ---- words


def _told(
    asked: Sequence[str], standings: Mapping[str, Standing], told: Callable[[str, Standing], Outcome]
) -> list[Outcome]:
    return [
        told(stream_id, standings[stream_id])
        if stream_id in standings
        else Outcome(stream_id, is_done=True, said=_("had ended by itself"))
        for stream_id in asked
    ]


def _kill_told(stream_id: str, now: Standing) -> Outcome:
    if not now.has_ended:
        said = _("its worker has not answered yet; it is told again with each renewal. Look again in a few seconds")
        return Outcome(stream_id, is_done=False, said=said)
    if now.state is StreamState.CANCELLED:
        return Outcome(stream_id, is_done=True, said=_("ended; its engine has let it go"))
    return Outcome(stream_id, is_done=True, said=_("had ended by itself"))


def _migrate_told(stream_id: str, before: Standing, now: Standing) -> Outcome:
    if now.has_ended:
        return Outcome(stream_id, is_done=True, said=_("ended before it was moved"))
    if now.epoch == before.epoch and now.owner == before.owner:
        said = _(
            "stays: its worker keeps what cannot go on exactly elsewhere (penalties, or a precision below float32). "
            "Let it finish, or end it"
        )
        return Outcome(stream_id, is_done=False, said=said)
    if not now.owner:
        said = _("waits for a place at another worker; after ten seconds any worker may take it")
        return Outcome(stream_id, is_done=False, said=said)
    if now.owner == before.owner:
        said = _("no other worker had a place: it goes on where it was. Make room first")
        return Outcome(stream_id, is_done=False, said=said)
    return Outcome(stream_id, is_done=True, said=_("goes on at %(worker)s") % {"worker": now.owner})


# ---- the trail


def _audit(action: AuditAction, streams: Sequence[LiveStream], note: str, actor: Actor) -> None:
    tenants = {tenant.pk.hex: tenant for tenant in Tenant.objects.filter(pk__in={one.tenant_id for one in streams})}
    for stream in streams:
        details = {
            "deployment": stream.deployment,
            "state": stream.state.value,
            "worker": stream.worker,
            "tokens": stream.tokens,
            "note": note,
        }
        audit_record(
            tenant=tenants.get(stream.tenant_id),
            actor=actor,
            action=action,
            target=StreamName(stream_id=stream.stream_id),
            details=details,
        )


def _audit_process(action: AuditAction, incarnation: str, details: Mapping[str, object], actor: Actor) -> None:
    target = FleetProcess(incarnation=incarnation)
    audit_record(tenant=None, actor=actor, action=action, target=target, details=details)
