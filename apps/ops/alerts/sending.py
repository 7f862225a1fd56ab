"""Tells receivers that an alert fired or is over: by email or a signed webhook (`apps.usage.deliveries`)."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Exists, OuterRef
from django.template.loader import render_to_string

from apps.ops.alerts.enums import AlertEvent
from apps.ops.models import Alert, AlertDelivery, AlertReceiver
from apps.usage.deliveries import NobodyToTellError, deliveries_retry, deliveries_send, email_send, operator_emails
from apps.usage.enums import Channel
from apps.usage.webhooks import Event, event_post

_WORDS = {AlertEvent.FIRED: "Firing", AlertEvent.RESOLVED: "Over"}


def alerts_send() -> int:
    """Tries what is due; returns how many were delivered. That it is over is not told before that it fired."""
    fired = AlertDelivery.objects.filter(
        alert=OuterRef("alert"),
        receiver=OuterRef("receiver"),
        event=AlertEvent.FIRED,
        next_attempt_at__isnull=False,
    )
    due = AlertDelivery.objects.exclude(Exists(fired), event=AlertEvent.RESOLVED)
    return deliveries_send(due.select_related("alert__rule", "alert__tenant", "receiver"), _send)


def alerts_retry(*, alerts: Iterable[Alert]) -> int:
    """Has what was given up or waits tried again; returns how many deliveries that are."""
    return deliveries_retry(AlertDelivery.objects.filter(alert__in=list(alerts)))


def _send(delivery: AlertDelivery) -> None:
    receiver = delivery.receiver
    if not receiver.is_active:
        raise NobodyToTellError("The receiver was switched off.")
    send = _email if receiver.channel == Channel.EMAIL else _webhook
    send(delivery.alert, AlertEvent(delivery.event), receiver)


def _email(alert: Alert, event: AlertEvent, receiver: AlertReceiver) -> None:
    named = [address.strip() for address in receiver.address.split(",") if address.strip()]
    email_send(
        subject=f"{_WORDS[event]}: {alert}",
        body=render_to_string("ops/alert.txt", {"alert": alert, "is_over": event is AlertEvent.RESOLVED}),
        recipients=named or operator_emails(),
        nobody="There is no active operator.",
    )


def _webhook(alert: Alert, event: AlertEvent, receiver: AlertReceiver) -> None:
    if not receiver.webhook_secret:
        raise NobodyToTellError("The receiver has no secret.")
    at = alert.fired_at if event is AlertEvent.FIRED else alert.resolved_at
    told = Event(
        id=f"evt_{alert.pk.hex}_{event.value}",
        type=f"alert.{event.value}",
        created_at=at or alert.since,
        data={
            "alert_id": alert.pk.hex,
            "rule": alert.rule_key,
            "name": alert.rule_name,
            "severity": alert.severity,
            "subject": alert.subject,
            "deployment": alert.deployment_name,
            "tenant": alert.tenant.slug if alert.tenant is not None else None,
            "value": alert.value,
            "worst_value": alert.worst_value,
            "threshold": alert.threshold,
            "since": _seconds(alert.since),
            "fired_at": _seconds(alert.fired_at),
            "resolved_at": _seconds(alert.resolved_at),
            "advice": alert.rule.advice if alert.rule is not None else "",
        },
    )
    event_post(told, url=receiver.address, sealed_secret=receiver.webhook_secret)


def _seconds(at: datetime | None) -> int | None:
    return int(at.timestamp()) if at is not None else None
