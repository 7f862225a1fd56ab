"""Mirrors the workers that are registered in Redis into `Worker` rows, for the admin and for what Celery decides.

The registrations are the truth. A worker that ends takes its own out, and its row becomes `ended`; one that is
registered and has lost its lease becomes `lost`, and its registration is removed.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import structlog
from django.db import transaction
from django.utils import timezone

from apps.deployments.enums import WorkerState
from apps.deployments.models import ModelDeployment, Worker
from apps.deployments.services import ERROR_LENGTH, deployment_error_record
from apps.tenants.live_state import redis_client
from apps.tenants.ui_events import FLEET_GROUP, ui_event_send
from headrace_wire import codec, redis_keys
from headrace_wire.api_key import redact
from headrace_wire.fleet import WorkerInfo
from headrace_wire.functions import Reply

logger = structlog.get_logger(__name__)

KEPT_AFTER_END = timedelta(days=7)
"""How long rows of ended workers stay to be read."""

ENGINE_LENGTH = 16

_MIRRORED = tuple(
    field.name for field in Worker._meta.concrete_fields if field.name not in {"incarnation", "started_at"}
)


@dataclass(frozen=True, slots=True)
class Registrations:
    """What Redis holds, split by lease."""

    alive: dict[str, WorkerInfo]
    dead: list[str]
    """Incarnations that are registered and hold no lease."""
    unreadable: list[str]


def registrations_read() -> Registrations:
    """Reads registrations and leases by Redis' own clock.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    pipeline = redis_client().pipeline(transaction=True)
    pipeline.hgetall(redis_keys.workers_key())
    pipeline.zrangebyscore(redis_keys.incarnations_key(), "-inf", "+inf", withscores=True)
    pipeline.time()
    reply: Reply = pipeline.execute()
    rows, leases, (seconds, microseconds) = reply
    now_ms = seconds * 1000 + microseconds // 1000
    leased = {name for name, expiry in leases if expiry > now_ms}
    alive: dict[str, WorkerInfo] = {}
    unreadable: list[str] = []
    for name, raw in rows.items():
        if name not in leased:
            continue
        try:
            alive[name.decode()] = codec.decode(raw, WorkerInfo)
        except msgspec.DecodeError as error:
            unreadable.append(name.decode())
            logger.warning("registration_unreadable", incarnation=name.decode(), error=str(error))
    dead = [name.decode() for name in rows if name not in leased]
    return Registrations(alive=alive, dead=dead, unreadable=unreadable)


def workers_sync() -> int:
    """Brings the rows up to date; returns how many workers appeared, changed their state or went.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; the rows stay as they were.
    """
    registrations = registrations_read()
    now = timezone.now()
    with transaction.atomic():
        before = dict(Worker.objects.filter(ended_at__isnull=True).values_list("incarnation", "state"))
        _rows_write(registrations.alive, now)
        gone = {name: _past_state(name, registrations) for name in before if name not in registrations.alive}
        for state in set(gone.values()):
            Worker.objects.filter(pk__in=[name for name in gone if gone[name] is state]).update(
                state=state, ended_at=now, num_requests_running=0, num_requests_waiting=0
            )
        Worker.objects.filter(ended_at__lt=now - KEPT_AFTER_END).delete()
        _errors_note(registrations.alive)
    if registrations.dead:
        redis_client().hdel(redis_keys.workers_key(), *registrations.dead)
    changed = {name: info.state.value for name, info in registrations.alive.items() if before.get(name) != info.state}
    changed |= {name: past.value for name, past in gone.items()}
    for incarnation, said in changed.items():
        logger.info("worker_changed", incarnation=incarnation, state=said)
    if changed:
        ui_event_send(FLEET_GROUP, "worker.changed", {"workers": changed})
    return len(changed)


def _past_state(incarnation: str, registrations: Registrations) -> WorkerState:
    is_registered = incarnation in registrations.dead or incarnation in registrations.unreadable
    return WorkerState.LOST if is_registered else WorkerState.ENDED


def _rows_write(alive: dict[str, WorkerInfo], now: datetime) -> None:
    names = {info.deployment for info in alive.values()}
    deployments = dict(ModelDeployment.objects.filter(name__in=names).values_list("name", "pk"))
    rows = [
        Worker(
            incarnation=incarnation,
            deployment_id=deployments.get(info.deployment),
            deployment_name=info.deployment,
            engine=info.engine[:ENGINE_LENGTH],  # nothing before its configuration has come
            state=WorkerState(info.state.value),
            host=info.host,
            pid=info.pid,
            model=info.model,
            fingerprint=info.fingerprint,
            max_model_len=info.max_model_len,
            max_num_seqs=info.max_num_seqs,
            num_requests_running=info.num_requests_running,
            num_requests_waiting=info.num_requests_waiting,
            kv_cache_usage=info.kv_cache_usage,
            tokens_generated=info.tokens_generated,
            cold_start_seconds=info.cold_start_seconds,
            options=info.options,
            adapters={
                report.adapter_id: {"revision": report.revision, "problem": redact(report.problem)[-ERROR_LENGTH:]}
                for report in info.adapters
            },
            last_error=redact(info.last_error)[-ERROR_LENGTH:],
            engine_failures=info.engine_failures,
            quarantined_at=datetime.fromtimestamp(info.quarantined_at, UTC) if info.quarantined_at else None,
            started_at=datetime.fromtimestamp(info.started_at, UTC),
            last_seen_at=now,
            ended_at=None,
        )
        for incarnation, info in sorted(alive.items())
    ]
    Worker.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["incarnation"], update_fields=list(_MIRRORED)
    )


def _errors_note(alive: dict[str, WorkerInfo]) -> None:
    """A broken worker's reason shows on its deployment until another worker of it is ready."""
    reasons: dict[str, str] = {}
    for info in alive.values():
        if info.last_error:
            reasons[info.deployment] = info.last_error
        elif info.state.value == WorkerState.READY:
            reasons.setdefault(info.deployment, "")
    for name, message in reasons.items():
        deployment_error_record(name=name, message=message)
