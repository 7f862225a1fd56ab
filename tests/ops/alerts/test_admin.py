"""Operators write rules, receivers and silences, and see what fired and who was told."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from redis import Redis

from apps.deployments.models import ModelDeployment
from apps.ops.alerts.evaluation import rule_advance
from apps.ops.alerts.readings import Reading
from apps.ops.models import Alert, AlertDelivery, AlertReceiver, AlertRule, AlertSilence, ServiceObjective
from apps.tenants.models import AuditEvent
from apps.tenants.sealed_text import unseal

pytestmark = pytest.mark.django_db

RULE: dict[str, Any] = {
    "name": "First tokens are late",
    "key": "late",
    "severity": "warning",
    "is_active": "on",
    "signal": "percentile",
    "duration": "ttft",
    "percentile": "95",
    "window_seconds": "300",
    "direction": "above",
    "threshold": "0.5",
    "clear_threshold": "0.4",
    "for_seconds": "0",
}


def add(client: Client, model: str, fields: dict[str, Any]) -> Any:
    return client.post(reverse(f"admin:ops_{model}_add"), fields)


def fire(number: int) -> None:
    """A rule's alert, of which one receiver was told."""
    rule = AlertRule.objects.get(key="late")
    readings = [Reading(f"d{one}", f"d{one}", 0.9) for one in range(number)]
    rule_advance(rule=rule, readings=readings, at=timezone.now())


@pytest.fixture
def rule(admin_client: Client) -> AlertRule:
    AlertReceiver.objects.all().delete()
    AlertReceiver.objects.create(name="Everybody", is_default=True)
    assert add(admin_client, "alertrule", RULE).status_code == 302
    return AlertRule.objects.get(key="late")


def test_a_rule_is_written_by_its_service(rule: AlertRule, admin_client: Client) -> None:
    receiver = AlertReceiver.objects.get()
    changed = {**RULE, "threshold": "0.6", "receivers": [receiver.pk]}
    del changed["key"]
    assert admin_client.post(reverse("admin:ops_alertrule_change", args=[rule.pk]), changed).status_code == 302
    rule.refresh_from_db()
    assert (rule.threshold, list(rule.receivers.all())) == (0.6, [receiver])
    rows = AuditEvent.all_tenants.filter(object_type="ops.alertrule").order_by("pk")
    assert [row.action for row in rows] == ["alert_rule.created", "alert_rule.changed"]
    assert rows[1].details["threshold"] == [0.5, 0.6]


@pytest.mark.parametrize(
    "wrong",
    [
        {"clear_threshold": "0.6"},
        {"direction": "below"},
        {"percentile": ""},
        {"signal": "share"},
        {"signal": "fleet"},
        {"signal": "burn_rate"},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(admin_client: Client, wrong: dict[str, str]) -> None:
    answer = add(admin_client, "alertrule", {**RULE, **wrong})
    assert answer.status_code == 200
    assert answer.context["adminform"].form.errors
    assert not AlertRule.objects.filter(key="late").exists()


BURN = {"signal": "burn_rate", "window_seconds": "3600", "short_window_seconds": "300"}


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        ({"window_seconds": "10", "short_window_seconds": "100"}, "short_window_seconds", "longer than the long one"),
        ({"short_window_seconds": "0"}, "short_window_seconds", "10 seconds at least"),
        ({"for_seconds": "2147483647"}, "for_seconds", "604800 seconds (a week) at most"),
    ],
)
def test_times_of_a_rule_that_cannot_be_are_told(
    admin_client: Client, wrong: dict[str, str], field: str, said: str
) -> None:
    answer = add(admin_client, "alertrule", {**RULE, **BURN, **wrong})
    assert answer.status_code == 200
    errors = answer.context["adminform"].form.errors
    assert list(errors) == [field]
    assert said in errors[field][0]
    assert add(admin_client, "alertrule", {**RULE, **BURN}).status_code == 302


@pytest.mark.parametrize(
    ("channel", "address", "said"),
    [
        ("webhook", "", "needs the address"),
        ("webhook", "ftp://x", "“ftp://x” is no address of the web. Write one that begins with https:// or http://."),
        ("webhook", "https://example.org:99999/hook", "ports are from 1 to 65535"),
        ("webhook", "https://example.org:0/hook", "ports are from 1 to 65535"),
        ("webhook", "https://[1/hook", "is no address of the web"),
        ("email", "ops@example.org, ops", "“ops” is no email address. Write some like ops@example.org"),
    ],
)
def test_an_address_that_is_none_is_an_error_of_its_field(
    admin_client: Client, channel: str, address: str, said: str
) -> None:
    fields = {"name": "Pager", "channel": channel, "address": address, "is_active": "on"}
    answer = add(admin_client, "alertreceiver", fields)
    assert answer.status_code == 200
    errors = answer.context["adminform"].form.errors
    assert list(errors) == ["address"]
    assert said in errors["address"][0]


def test_pages_of_alerts_have_a_fixed_number_of_queries(
    rule: AlertRule, admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    url = reverse("admin:ops_alert_changelist")
    fire(1)
    admin_client.get(url)
    with django_assert_max_num_queries(12) as few:
        admin_client.get(url)
    fire(20)
    with django_assert_max_num_queries(len(few)):
        page = admin_client.get(url).content.decode()
    assert page.count("Everybody (fired): waits") == 20


def test_what_did_not_arrive_is_sent_again(rule: AlertRule, admin_client: Client) -> None:
    fire(1)
    AlertDelivery.objects.update(next_attempt_at=None, attempts=12, last_error="answered with 500")
    alert = Alert.objects.get()
    assert "answered with 500" in admin_client.get(reverse("admin:ops_alert_change", args=[alert.pk])).content.decode()
    answer = admin_client.post(
        reverse("admin:ops_alert_changelist"),
        {"action": "send_again", "_selected_action": [str(alert.pk)]},
        follow=True,
    )
    assert "1 delivery is tried again." in answer.content.decode()
    assert AlertDelivery.objects.get().next_attempt_at is not None


def test_alerts_are_silenced_from_their_list(
    rule: AlertRule, admin_client: Client, deployment: ModelDeployment
) -> None:
    at = timezone.now()
    rule_advance(rule=rule, readings=[Reading(deployment.name, deployment.name, 0.9), Reading("x", "gone", 0.9)], at=at)
    ticked = [str(pk) for pk in Alert.objects.values_list("pk", flat=True)]
    asked = {"action": "silence", "_selected_action": ticked}
    answer = admin_client.post(reverse("admin:ops_alert_changelist"), asked, follow=True)
    assert "1 silence was added" in answer.content.decode(), "one without a deployment would be for all"
    silence = AlertSilence.objects.get()
    assert (silence.rule, silence.deployment) == (rule, deployment)
    assert silence.ends_at - silence.starts_at == timedelta(hours=1)
    assert AuditEvent.all_tenants.filter(action="silence.created").exists()
    AlertDelivery.objects.all().delete()
    Alert.objects.all().delete()
    rule_advance(
        rule=rule, readings=[Reading(deployment.name, deployment.name, 0.9)], at=timezone.now() + timedelta(seconds=15)
    )
    assert Alert.objects.get().state == "firing"
    assert not AlertDelivery.objects.exists()


def test_a_webhook_secret_is_shown_once(admin_client: Client) -> None:
    fields = {"name": "Pager", "channel": "webhook", "address": "https://example.org/hook", "is_active": "on"}
    assert add(admin_client, "alertreceiver", fields).status_code == 302
    receiver = AlertReceiver.objects.get(name="Pager")
    url = reverse("admin:ops_alertreceiver_renew_secret", args=[receiver.pk])
    assert "whsec_" not in admin_client.get(url).content.decode()
    page = admin_client.post(url).content.decode()
    receiver.refresh_from_db()
    assert unseal(receiver.webhook_secret) in page
    change = admin_client.get(reverse("admin:ops_alertreceiver_change", args=[receiver.pk])).content.decode()
    assert "whsec_" not in change


def test_a_silence_that_ends_before_it_begins_is_refused(rule: AlertRule, admin_client: Client) -> None:
    now = timezone.now()

    def fields(starts: timedelta, ends: timedelta) -> dict[str, str]:
        times = {"starts_at": now + starts, "ends_at": now + ends}
        split = {
            f"{name}_{part}": text
            for name, at in times.items()
            for part, text in enumerate(f"{at:%Y-%m-%d %H:%M}".split())
        }
        return {"reason": "Maintenance", "rule": str(rule.pk), **split}

    add(admin_client, "alertsilence", fields(timedelta(hours=1), timedelta()))
    assert not AlertSilence.objects.exists()
    assert add(admin_client, "alertsilence", fields(timedelta(), timedelta(hours=1))).status_code == 302
    assert AlertSilence.objects.get().rule == rule


def test_an_objective_shows_what_is_left(admin_client: Client, deployment: ModelDeployment, live_redis: Redis) -> None:
    fields = {"deployment": str(deployment.pk), "indicator": "ttft", "target_percent": "95", "window_days": "30"}
    assert add(admin_client, "serviceobjective", fields).status_code == 200
    assert add(admin_client, "serviceobjective", {**fields, "goal_seconds": "0.5"}).status_code == 302
    objective = ServiceObjective.objects.get()
    assert objective.says == "95 % Time to first token ≤ 0.5 s, 30 d"
    page = admin_client.get(reverse("admin:ops_serviceobjective_changelist")).content.decode()
    assert "100.0% (0 of 0 spent)" in page
    assert (
        add(admin_client, "serviceobjective", {**fields, "indicator": "errors", "goal_seconds": "3"}).status_code == 302
    )
    assert ServiceObjective.objects.get(indicator="errors").goal_seconds is None


@pytest.mark.parametrize("model", ["alert", "alertrule", "alertreceiver", "alertsilence", "serviceobjective"])
def test_others_see_none_of_it(client: Client, user: Any, model: str) -> None:
    client.force_login(user)
    assert client.get(reverse(f"admin:ops_{model}_changelist")).status_code in {302, 403}
    assert client.get(reverse("admin:ops_diagnosis_findings")).status_code in {302, 403}
