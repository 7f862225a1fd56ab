"""Looks at the rules and moves alerts on: nothing, pending, firing, resolved; each change once, whoever looks.

All of a rule's changes and the deliveries that tell of them are one transaction, under a lock on the rule: of two that
look at the same time the second one finds what the first one did, and one that dies has done nothing. What was read
before the last look is dropped.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import structlog
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Q
from django.utils import timezone
from redis.exceptions import RedisError

from apps.deployments.models import ModelDeployment
from apps.ops.alerts.enums import AlertEvent, AlertState, Direction
from apps.ops.alerts.metrics import ALERTS_CHANGED, ALERTS_FIRING
from apps.ops.alerts.readings import Reading, Readings
from apps.ops.models import Alert, AlertDelivery, AlertReceiver, AlertRule, AlertSilence
from apps.ops.models.alerts import SUBJECT_LENGTH
from apps.tenants.ui_events import FLEET_GROUP, ui_event_send

logger = structlog.get_logger(__name__)

KEPT_AFTER_END = timedelta(days=90)
UI_EVENT = "alert.changed"


def alerts_evaluate(*, now: datetime | None = None) -> int:
    """Looks at all active rules; returns how many alerts fired or were over.

    Where Redis or the database is away, it is logged and the next run looks again: alerts stay as they are.
    """
    at = now or timezone.now()
    changed = 0
    try:
        readings = Readings(at, ModelDeployment.objects.filter(is_active=True).only("id", "name"))
        # First: a new rule may have the key of one that was deleted, whose alerts are open still.
        changed += _inactive_rules_close(at)
        for rule in AlertRule.objects.filter(is_active=True).select_related("tenant").order_by("pk"):
            changed += rule_advance(rule=rule, readings=readings.of(rule), at=at)
        ALERTS_FIRING.set(Alert.objects.filter(state=AlertState.FIRING).count())
    except (OperationalError, InterfaceError, RedisError) as error:
        logger.warning("alerts_wait", error=str(error).strip())
    return changed


def alerts_expire(*, now: datetime | None = None) -> int:
    """Deletes alerts that were over long ago; returns how many."""
    old = Alert.objects.filter(resolved_at__lt=(now or timezone.now()) - KEPT_AFTER_END)
    return old.delete()[1].get(Alert._meta.label, 0)


@transaction.atomic
def rule_advance(*, rule: AlertRule, readings: Sequence[Reading], at: datetime) -> int:
    """Moves the alerts of one rule on by what was read at `at`; returns how many fired or were over."""
    locked = AlertRule.objects.select_for_update().filter(pk=rule.pk, is_active=True).first()
    if locked is None or (locked.read_at is not None and locked.read_at >= at):
        return 0
    AlertRule.objects.filter(pk=locked.pk).update(read_at=at)
    open_ones = {
        _key_of(alert.tenant_id, alert.deployment_name, alert.subject): alert
        for alert in Alert.objects.filter(rule=locked, resolved_at__isnull=True)
    }
    known = [open_ones.pop(_key_of(locked.tenant_id, one.deployment, one.subject), None) for one in readings]
    # Those whose subject is gone first: a new one may be called the same.
    changed = sum(_end(locked, alert, None, at) for alert in open_ones.values())
    is_silent = _silences_at(locked, at)
    for reading, alert in zip(readings, known, strict=True):
        changed += _advance(locked, alert, reading, at, is_silent=is_silent(reading.deployment))
    return changed


def _key_of(tenant_id: UUID | None, deployment: str, subject: str) -> tuple[UUID | None, str]:
    """Returns what tells a rule's subjects apart. Of a tenant's, the name in the subject may change."""
    return tenant_id, subject[:SUBJECT_LENGTH] if tenant_id is None else deployment


def _silences_at(rule: AlertRule, at: datetime) -> "partial[bool]":
    rows = AlertSilence.objects.filter(Q(rule=rule) | Q(rule__isnull=True), starts_at__lte=at, ends_at__gt=at)
    silent: set[str | None] = set(rows.values_list("deployment__name", flat=True))
    return partial(_is_silent, silent)


def _is_silent(silent: set[str | None], deployment: str) -> bool:
    return None in silent or deployment in silent


def _advance(rule: AlertRule, alert: Alert | None, reading: Reading, at: datetime, *, is_silent: bool) -> int:
    value, subject = reading.value, reading.subject[:SUBJECT_LENGTH]
    if alert is None:
        if value is None or not is_bad(rule, value):
            return 0
        alert = Alert(
            rule=rule,
            rule_key=rule.key,
            rule_name=rule.name,
            severity=rule.severity,
            subject=subject,
            deployment_name=reading.deployment,
            tenant_id=rule.tenant_id,
            threshold=rule.threshold,
            since=at,
        )
    else:
        alert.subject = subject
        if value is None or is_over(rule, value, was_firing=alert.state == AlertState.FIRING):
            return _end(rule, alert, value, at)
    alert.value, alert.worst_value = value, _worse(rule, alert.worst_value, value)
    fires = alert.state == AlertState.PENDING and at - alert.since >= timedelta(seconds=rule.for_seconds)
    if fires:
        alert.state, alert.fired_at = AlertState.FIRING, at
    alert.save()
    if alert.state == AlertState.FIRING and alert.told_at is None and not is_silent:
        alert.told_at = at
        alert.save(update_fields=["told_at"])
        _tell(rule, alert, AlertEvent.FIRED)
    if fires:
        _note(alert, AlertEvent.FIRED)
    return int(fires)


def _end(rule: AlertRule | None, alert: Alert, value: float | None, at: datetime) -> int:
    """What has not fired leaves no trace; who was told that it fired is told that it is over."""
    if alert.state == AlertState.PENDING:
        alert.delete()
        return 0
    alert.state, alert.resolved_at, alert.value = AlertState.RESOLVED, at, value
    alert.save()
    if alert.told_at is not None:
        _tell(rule, alert, AlertEvent.RESOLVED)
    _note(alert, AlertEvent.RESOLVED)
    return 1


@transaction.atomic
def _inactive_rules_close(at: datetime) -> int:
    """Ends what belongs to rules that were switched off or deleted."""
    left = Alert.objects.select_for_update(of=("self",)).filter(resolved_at__isnull=True)
    orphans = left.filter(Q(rule__isnull=True) | Q(rule__is_active=False)).select_related("rule")
    return sum(_end(alert.rule, alert, None, at) for alert in orphans)


def is_bad(rule: AlertRule, value: float) -> bool:
    """Whether a value breaks a rule."""
    return value > rule.threshold if rule.direction == Direction.ABOVE else value < rule.threshold


def is_over(rule: AlertRule, value: float, *, was_firing: bool) -> bool:
    """Whether a value ends an alert: what fires has to come back as far as the second threshold (hysteresis)."""
    if not was_firing or rule.clear_threshold == rule.threshold:
        return not is_bad(rule, value)
    return value <= rule.clear_threshold if rule.direction == Direction.ABOVE else value >= rule.clear_threshold


def _worse(rule: AlertRule, known: float | None, value: float | None) -> float | None:
    if known is None or value is None:
        return value if known is None else known
    return max(known, value) if rule.direction == Direction.ABOVE else min(known, value)


def _tell(rule: AlertRule | None, alert: Alert, event: AlertEvent) -> None:
    """Has receivers told once the transaction is there: that it is over, those who were told that it fired."""
    if event is AlertEvent.RESOLVED:
        told = AlertDelivery.objects.filter(alert=alert, event=AlertEvent.FIRED)
        receivers: Iterable[AlertReceiver] = [one.receiver for one in told.select_related("receiver")]
    elif rule is not None:
        active = AlertReceiver.objects.filter(is_active=True)
        receivers = list(active.filter(rules=rule)) or active.filter(is_default=True)
    else:
        receivers = ()
    now = timezone.now()
    AlertDelivery.objects.bulk_create(
        [
            AlertDelivery(alert=alert, receiver=one, channel=one.channel, event=event, next_attempt_at=now)
            for one in receivers
        ],
        ignore_conflicts=True,
    )


def _note(alert: Alert, event: AlertEvent) -> None:
    """Says so to open pages, metrics and the log, once it is stored."""

    def note() -> None:
        ALERTS_CHANGED.labels(rule=alert.rule_key, event=event.value).inc()
        logger.warning("alert", alert=str(alert), rule=alert.rule_key, change=event.value, value=alert.value)
        ui_event_send(FLEET_GROUP, UI_EVENT, {"rule": alert.rule_key, "subject": alert.subject, "state": alert.state})

    transaction.on_commit(note)
