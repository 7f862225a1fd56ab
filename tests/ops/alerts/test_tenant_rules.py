"""A rule may look at the requests of one tenant: its alert names the tenant, and goes with it."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from redis import Redis

from apps.accounts.models import User
from apps.deployments.models import ModelDeployment
from apps.ops.alerts.evaluation import alerts_evaluate
from apps.ops.alerts.services import alerting_save
from apps.ops.models import Alert, AlertDelivery, AlertReceiver, AlertRule
from apps.ops.tasks import alerts_send_task
from apps.tenants.models import Tenant
from apps.tenants.services import tenant_delete, tenant_update
from headrace_wire.latency.measures import Tally
from headrace_wire.latency.summary import SeriesKey
from tests.support.latencies import latencies_file, summary_of
from tests.support.webhook_receiver import running_receiver

pytestmark = pytest.mark.django_db

LATE: dict[str, Any] = {
    "signal": "percentile",
    "duration": "ttft",
    "percentile": 95.0,
    "threshold": 0.5,
    "clear_threshold": 0.4,
    "for_seconds": 0,
}
FAILING: dict[str, Any] = {"signal": "share", "happening": "errors", "threshold": 0.1, "clear_threshold": 0.1}


def rule(key: str, tenant: Tenant | None, **fields: Any) -> AlertRule:
    row = AlertRule(key=key, name=f"Late: {key}", tenant=tenant, **{**LATE, **fields})
    return alerting_save(row=row)


@pytest.fixture
def slow_for_acme(live_redis: Redis, deployment: ModelDeployment, tenant: Tenant, other_tenant: Tenant) -> None:
    """One in a hundred requests is Acme's, and those are slow and fail."""
    AlertRule.objects.all().delete()
    AlertReceiver.objects.all().delete()
    slow = summary_of(2.0, requests=10)
    slow.count(Tally.ERRORS, 5)
    series = {
        SeriesKey("tiny", tenant.pk.hex, "k", "w"): slow,
        SeriesKey("tiny", other_tenant.pk.hex, "k", "w"): summary_of(0.1, requests=990),
    }
    latencies_file("g", timezone.now() - timedelta(seconds=30), series)


@pytest.mark.usefixtures("slow_for_acme")
def test_only_the_tenant_whose_requests_are_late_has_an_alert(tenant: Tenant, other_tenant: Tenant) -> None:
    rule("all", None)
    rule("globex", other_tenant)
    rule("acme", tenant)
    rule("acme-errors", tenant, **FAILING)
    assert alerts_evaluate() == 2
    found = Alert.objects.order_by("rule_key").values_list("rule_key", "subject", "deployment_name", "tenant")
    assert list(found) == [(key, "tiny (Acme)", "tiny", tenant.pk) for key in ("acme", "acme-errors")]
    assert Alert.objects.get(rule_key="acme-errors").value == 0.5


@pytest.mark.usefixtures("slow_for_acme")
def test_a_tenant_that_is_renamed_keeps_its_alert(tenant: Tenant) -> None:
    rule("acme", tenant)
    alerting_save(row=AlertReceiver(name="Everybody", is_default=True))
    assert alerts_evaluate() == 1
    before = Alert.objects.get()
    tenant.name = "Acme Water"
    tenant_update(tenant=tenant)
    assert alerts_evaluate() == 0
    after = Alert.objects.get()
    assert (after.pk, after.state, after.fired_at) == (before.pk, "firing", before.fired_at)
    assert after.subject == "tiny (Acme Water)"
    assert list(AlertDelivery.objects.values_list("event", flat=True)) == ["fired"]


@pytest.mark.usefixtures("slow_for_acme")
def test_a_rule_that_is_given_to_a_tenant_of_the_same_name_begins_anew(tenant: Tenant, other_tenant: Tenant) -> None:
    row = rule("either", tenant, threshold=0.05, clear_threshold=0.05)
    assert alerts_evaluate() == 1
    other_tenant.name = tenant.name
    row.tenant = tenant_update(tenant=other_tenant)
    alerting_save(row=row)
    assert alerts_evaluate() == 2, "one is over, and one fires"
    assert list(Alert.objects.order_by("since").values_list("tenant", "subject", "state")) == [
        (tenant.pk, "tiny (Acme)", "resolved"),
        (other_tenant.pk, "tiny (Acme)", "firing"),
    ]


@pytest.mark.usefixtures("slow_for_acme")
def test_receivers_are_told_whose_requests_they_are(
    tenant: Tenant, admin_user: User, mailoutbox: list[EmailMessage]
) -> None:
    rule("acme", tenant)
    with running_receiver() as hook:
        for channel, address in (("email", ""), ("webhook", hook.url)):
            alerting_save(row=AlertReceiver(name=channel, channel=channel, address=address, is_default=True))
        alerts_evaluate()
        alerts_send_task()
    (mail,) = mailoutbox
    assert mail.subject.endswith("Firing: Late: acme: tiny (Acme)")
    assert "Tenant: Acme (acme)" in mail.body
    ((_, _, body),) = hook.taken
    posted = json.loads(body)
    assert (posted["data"]["tenant"], posted["data"]["deployment"]) == ("acme", "tiny")


@pytest.mark.usefixtures("slow_for_acme")
def test_rules_and_alerts_of_a_tenant_go_with_it(tenant: Tenant) -> None:
    rule("acme", tenant)
    rule("all", None, threshold=0.01, clear_threshold=0.01)
    assert alerts_evaluate() == 2
    tenant.is_active = False
    tenant_delete(tenant=tenant_update(tenant=tenant))
    assert set(AlertRule.objects.values_list("key", flat=True)) == {"all"}
    assert set(Alert.objects.values_list("rule_key", flat=True)) == {"all"}


@pytest.mark.parametrize(
    "fields",
    [
        {"signal": "fleet", "figure": "waiting"},
        {"signal": "burn_rate", "short_window_seconds": 300},
    ],
)
def test_of_a_tenant_nothing_else_is_known(tenant: Tenant, fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="Of a tenant only percentiles and shares"):
        rule("acme", tenant, **fields)


@pytest.mark.usefixtures("slow_for_acme")
def test_operators_choose_the_tenant_and_see_it_and_members_see_no_alerts(
    tenant: Tenant, admin_client: Client, client: Client, user: User
) -> None:
    form = {"name": "Acme is late", "key": "acme", "severity": "warning", "is_active": "on", "direction": "above"}
    asked = {**form, **LATE, "window_seconds": 300, "tenant": tenant.pk}
    assert admin_client.post(reverse("admin:ops_alertrule_add"), asked).status_code == 302
    assert AlertRule.objects.get(key="acme").tenant == tenant
    alerts_evaluate()
    assert "Acme" in admin_client.get(reverse("admin:ops_alertrule_changelist")).content.decode()
    page = admin_client.get(reverse("admin:ops_alert_changelist"), {"tenant__id__exact": str(tenant.pk)})
    assert "tiny (Acme)" in page.content.decode()
    client.force_login(user)
    assert client.get(reverse("admin:ops_alert_changelist")).status_code in (302, 403)
