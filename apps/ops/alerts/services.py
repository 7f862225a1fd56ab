"""Writes of objectives, alert rules, receivers and silences. Each: lock, check, change, audit row."""

from collections.abc import Iterable
from datetime import timedelta
from typing import TypeVar

from django.db import models, transaction
from django.utils import timezone

from apps.deployments.models import ModelDeployment
from apps.ops.models import Alert, AlertReceiver, AlertRule, AlertSilence, ServiceObjective
from apps.tenants.changes import row_changes, row_lock, set_changes
from apps.tenants.enums import AuditAction
from apps.tenants.sealed_text import seal
from apps.tenants.services import Actor, audit_record
from apps.tenants.webhook_targets import webhook_secret_new, webhook_url_check
from apps.usage.enums import Channel

R = TypeVar("R", bound=ServiceObjective | AlertRule | AlertReceiver | AlertSilence)

_ACTIONS: dict[type[models.Model], tuple[AuditAction, AuditAction, AuditAction]] = {
    ServiceObjective: (AuditAction.OBJECTIVE_CREATED, AuditAction.OBJECTIVE_CHANGED, AuditAction.OBJECTIVE_DELETED),
    AlertRule: (AuditAction.ALERT_RULE_CREATED, AuditAction.ALERT_RULE_CHANGED, AuditAction.ALERT_RULE_DELETED),
    AlertReceiver: (
        AuditAction.ALERT_RECEIVER_CREATED,
        AuditAction.ALERT_RECEIVER_CHANGED,
        AuditAction.ALERT_RECEIVER_DELETED,
    ),
    AlertSilence: (AuditAction.SILENCE_CREATED, AuditAction.SILENCE_CHANGED, AuditAction.SILENCE_DELETED),
}


@transaction.atomic
def alerting_save(*, row: R, receivers: Iterable[AlertReceiver] | None = None, actor: Actor = None) -> R:
    """Stores a new or changed row; `receivers` are a rule's.

    Raises:
        ValidationError: A field is not acceptable.
    """
    before = row_lock(row)
    created, changed, _deleted = _ACTIONS[type(row)]
    row.full_clean()
    if isinstance(row, AlertReceiver):
        _receiver_prepare(row, before)
    changes = row_changes(before, row)
    row.save()
    if isinstance(row, AlertRule) and receivers is not None:
        chosen = list(receivers)
        changes |= set_changes("receivers", row.receivers.all(), chosen)
        row.receivers.set(chosen)
    if changes or before is None:
        action = created if before is None else changed
        audit_record(tenant=None, actor=actor, action=action, target=row, details=changes)
    return row


@transaction.atomic
def alerts_silence(*, alerts: Iterable[Alert], lasts: timedelta, actor: Actor = None) -> int:
    """Has nobody told of these alerts' rules and deployments from now on for a time; returns how many silences.

    An alert whose rule or deployment is gone has none: a silence without one is for all of them.
    """
    chosen = list(alerts)
    now = timezone.now()
    deployments = {
        row.name: row for row in ModelDeployment.objects.filter(name__in={a.deployment_name for a in chosen})
    }
    pairs = {
        (alert.rule, deployment)
        for alert in chosen
        if alert.rule is not None and (deployment := deployments.get(alert.deployment_name)) is not None
    }
    for rule, deployment in pairs:
        reason = f"{rule.name}: {deployment.name}, from the list of alerts"[:300]
        silence = AlertSilence(rule=rule, deployment=deployment, starts_at=now, ends_at=now + lasts, reason=reason)
        alerting_save(row=silence, actor=actor)
    return len(pairs)


@transaction.atomic
def alerting_delete(*, row: R, actor: Actor = None) -> None:
    """Deletes a row. What a deleted rule had open ends with the next look."""
    if row_lock(row) is None:
        return
    audit_record(tenant=None, actor=actor, action=_ACTIONS[type(row)][2], target=row, details={})
    row.delete()


@transaction.atomic
def alert_receiver_secret_renew(*, receiver: AlertReceiver, actor: Actor = None) -> str:
    """Gives a webhook a new secret and returns it: it is shown once, and signs what is posted from now on."""
    row_lock(receiver)
    secret = webhook_secret_new()
    receiver.webhook_secret = seal(secret)
    receiver.save(update_fields=["webhook_secret"])
    audit_record(
        tenant=None, actor=actor, action=AuditAction.ALERT_RECEIVER_SECRET_RENEWED, target=receiver, details={}
    )
    return secret


def _receiver_prepare(receiver: AlertReceiver, before: models.Model | None) -> None:
    """Looks up where a webhook leads, and sees that nothing is ever posted unsigned."""
    if isinstance(before, AlertReceiver):
        receiver.webhook_secret = before.webhook_secret  # renewed by its own service alone
    if receiver.channel == Channel.WEBHOOK:
        webhook_url_check(receiver.address, field="address")
        receiver.webhook_secret = receiver.webhook_secret or seal(webhook_secret_new())
