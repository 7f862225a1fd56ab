"""Receivers are told that an alert fired and that it is over: by email, and by webhooks that a real client verifies."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import openai
import pytest
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.utils import timezone
from pytest_django import Settings

from apps.accounts.models import User
from apps.ops.alerts.evaluation import rule_advance
from apps.ops.alerts.readings import Reading
from apps.ops.alerts.sending import alerts_retry
from apps.ops.alerts.services import alert_receiver_secret_renew, alerting_delete, alerting_save
from apps.ops.models import Alert, AlertDelivery, AlertReceiver, AlertRule
from apps.ops.tasks import alerts_send_task
from apps.tenants.models import AuditEvent
from apps.tenants.sealed_text import unseal
from apps.usage.deliveries import MAX_ATTEMPTS
from apps.usage.enums import Channel
from tests.support.webhook_receiver import Receiver, running_receiver

pytestmark = pytest.mark.django_db

START = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with running_receiver() as server:
        yield server


@pytest.fixture
def rule(db: None) -> AlertRule:
    AlertReceiver.objects.all().delete()
    return alerting_save(
        row=AlertRule(
            key="late",
            name="First tokens are late",
            advice="Add workers.",
            signal="percentile",
            duration="ttft",
            percentile=95.0,
            threshold=0.5,
            clear_threshold=0.4,
            for_seconds=0,
        )
    )


def receiver(channel: Channel, address: str = "") -> AlertReceiver:
    row = AlertReceiver(name=f"{channel} {address}", channel=channel, address=address, is_default=True)
    return alerting_save(row=row)


def look(rule: AlertRule, value: float, seconds: float) -> None:
    rule_advance(rule=rule, readings=[Reading("chat", "chat", value)], at=START + timedelta(seconds=seconds))


def make_due() -> None:
    """The pause is over."""
    AlertDelivery.objects.filter(next_attempt_at__isnull=False).update(next_attempt_at=timezone.now())


def test_operators_get_one_email_when_it_fires_and_one_when_it_is_over(
    rule: AlertRule, admin_user: User, mailoutbox: list[EmailMessage]
) -> None:
    receiver(Channel.EMAIL)
    look(rule, 0.75, 0)
    for _ in range(3):
        alerts_send_task()
        make_due()
    look(rule, 0.1, 60)
    for _ in range(3):
        alerts_send_task()
        make_due()
    fired, over = mailoutbox
    assert (fired.to, fired.subject) == ([admin_user.email], "[Headrace] Firing: First tokens are late: chat")
    assert "Now:       0.75\nWorst:     0.75\nThreshold: 0.5\n" in fired.body
    assert "Add workers." in fired.body
    assert over.subject == "[Headrace] Over: First tokens are late: chat"
    assert "It is over since 2026-11-30 09:01:00 UTC" in over.body
    assert "Now:       0.1\nWorst:     0.75\n" in over.body


def test_named_addresses_are_told_instead_of_operators(
    rule: AlertRule, admin_user: User, mailoutbox: list[EmailMessage]
) -> None:
    receiver(Channel.EMAIL, "a@example.org, b@example.org")
    look(rule, 0.75, 0)
    assert alerts_send_task() == 1
    assert mailoutbox[0].to == ["a@example.org", "b@example.org"]


def test_webhooks_are_signed_so_that_a_client_can_verify_them(rule: AlertRule, hook: Receiver) -> None:
    secret = unseal(receiver(Channel.WEBHOOK, hook.url).webhook_secret)
    look(rule, 0.75, 0)
    alerts_send_task()
    look(rule, 0.1, 60)
    alerts_send_task()
    client = openai.OpenAI(api_key="unused", webhook_secret=secret)
    for _path, headers, body in hook.taken:
        client.webhooks.verify_signature(body, headers)
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.verify_signature(body + b" ", headers)
    fired, over = (json.loads(body) for _, _, body in hook.taken)
    assert (fired["type"], over["type"]) == ("alert.fired", "alert.resolved")
    assert fired["id"] != over["id"]
    assert fired["data"] == {
        "alert_id": Alert.objects.get().pk.hex,
        "rule": "late",
        "name": "First tokens are late",
        "severity": "warning",
        "subject": "chat",
        "deployment": "chat",
        "tenant": None,
        "value": 0.75,
        "worst_value": 0.75,
        "threshold": 0.5,
        "since": int(START.timestamp()),
        "fired_at": int(START.timestamp()),
        "resolved_at": None,
        "advice": "Add workers.",
    }
    assert over["data"]["resolved_at"] == int(START.timestamp()) + 60


def test_that_it_is_over_waits_until_it_was_told_that_it_fired(rule: AlertRule, hook: Receiver) -> None:
    receiver(Channel.WEBHOOK, hook.url)
    hook.statuses = [500, 500]
    look(rule, 0.75, 0)
    assert alerts_send_task() == 0
    look(rule, 0.1, 60)
    make_due()
    assert alerts_send_task() == 0
    make_due()
    assert alerts_send_task() == 1
    assert alerts_send_task() == 1
    told = [json.loads(body)["type"] for _, _, body in hook.taken]
    assert told == ["alert.fired", "alert.fired", "alert.fired", "alert.resolved"]
    ids = [headers["webhook-id"] for _, headers, _ in hook.taken]
    assert len(set(ids[:3])) == 1, "a receiver can tell that it is the same"


def test_a_receiver_that_does_not_answer_is_tried_again(
    rule: AlertRule, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver(Channel.WEBHOOK, hook.url)
    hook.silent_for = 1
    look(rule, 0.75, 0)
    with monkeypatch.context() as impatient:
        impatient.setattr("apps.usage.webhooks.TIMEOUT_SECONDS", 0.2)
        assert alerts_send_task() == 0
    delivery = AlertDelivery.objects.get()
    assert (delivery.attempts, "timed out" in delivery.last_error) == (1, True)
    make_due()
    assert alerts_send_task() == 1


def test_it_is_given_up_with_a_record_and_can_be_asked_for_again(rule: AlertRule, hook: Receiver) -> None:
    receiver(Channel.WEBHOOK, hook.url)
    hook.statuses = [503] * MAX_ATTEMPTS
    look(rule, 0.75, 0)
    for _ in range(MAX_ATTEMPTS + 2):
        alerts_send_task()
        make_due()
    assert len(hook.taken) == MAX_ATTEMPTS
    delivery = AlertDelivery.objects.get()
    assert (delivery.next_attempt_at, delivery.delivered_at) == (None, None)
    assert delivery.last_error == "answered with 503"
    assert alerts_retry(alerts=Alert.objects.all()) == 1
    assert alerts_send_task() == 1


def test_a_receiver_that_was_switched_off_is_not_told_any_more(rule: AlertRule, hook: Receiver) -> None:
    row = receiver(Channel.WEBHOOK, hook.url)
    look(rule, 0.75, 0)
    row.is_active = False
    alerting_save(row=row)
    assert alerts_send_task() == 0
    assert (hook.taken, AlertDelivery.objects.get().next_attempt_at) == ([], None)


@pytest.mark.parametrize(
    ("channel", "address"),
    [
        (Channel.WEBHOOK, ""),
        (Channel.WEBHOOK, "ftp://example.org"),
        (Channel.WEBHOOK, "http://169.254.169.254/latest"),
        (Channel.WEBHOOK, "http://127.0.0.1/hook"),
        (Channel.EMAIL, "nobody"),
    ],
)
def test_an_address_that_cannot_be_is_refused(db: None, settings: Settings, channel: Channel, address: str) -> None:
    settings.HEADRACE_WEBHOOK_INTERNAL = False
    with pytest.raises(ValidationError) as refusal:
        receiver(channel, address)
    assert "address" in refusal.value.message_dict


def test_a_secret_is_renewed_by_its_own_service_alone_and_never_told(rule: AlertRule, admin_user: User) -> None:
    row = receiver(Channel.WEBHOOK, "https://example.org/hook")
    first = unseal(row.webhook_secret)
    second = alert_receiver_secret_renew(receiver=row, actor=admin_user)
    stale = AlertReceiver.objects.get(pk=row.pk)
    stale.webhook_secret, stale.name = "", "Renamed"
    alerting_save(row=stale, actor=admin_user)
    assert unseal(AlertReceiver.objects.get(pk=row.pk).webhook_secret) == second != first
    rows = AuditEvent.all_tenants.filter(object_type="ops.alertreceiver").order_by("pk")
    assert list(rows.values_list("action", flat=True)) == [
        *("alert_receiver.created", "alert_receiver.secret_renewed", "alert_receiver.changed")
    ]
    assert not [event for event in rows if first in str(event.details) or second in str(event.details)]


def test_every_write_has_an_audit_row(rule: AlertRule, admin_user: User) -> None:
    row = receiver(Channel.EMAIL)
    alerting_save(row=rule, receivers=[row], actor=admin_user)
    alerting_save(row=rule, receivers=[row], actor=admin_user)
    alerting_delete(row=rule, actor=admin_user)
    rows = AuditEvent.all_tenants.filter(object_type="ops.alertrule").order_by("pk")
    assert [(event.action, event.details.get("receivers")) for event in rows] == [
        ("alert_rule.created", None),
        ("alert_rule.changed", [[], [str(row)]]),
        ("alert_rule.deleted", None),
    ]
