"""The admin of policies and decisions."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from apps.accounts.models import User
from apps.deployments.autoscale.services import autoscale_policy_create
from apps.deployments.models import AutoscalePolicy, ModelDeployment, ScalingDecision, ScalingSample

POLICIES = reverse("admin:deployments_autoscalepolicy_changelist")
ADD = reverse("admin:deployments_autoscalepolicy_add")
DECISIONS = reverse("admin:deployments_scalingdecision_changelist")


def policy_form(deployment: ModelDeployment, **changes: Any) -> dict[str, Any]:
    fields = AutoscalePolicy._meta.concrete_fields
    defaults = {field.name: field.get_default() for field in fields if field.editable and field.has_default()}
    return {**defaults, "deployment": str(deployment.pk), "workload": "", "schedule": "", **changes}


@pytest.fixture
def policy(deployment: ModelDeployment) -> AutoscalePolicy:
    return autoscale_policy_create(policy=AutoscalePolicy(deployment=deployment))


def busy_hour(deployment: ModelDeployment) -> None:
    begin = timezone.now() - timedelta(minutes=50)
    ScalingSample.objects.bulk_create(
        ScalingSample(
            deployment=deployment,
            at=begin + timedelta(seconds=15 * tick),
            workers=1,
            ready=1,
            running=10,
            places=10,
            requests_per_second=2.0,
            worker_capacity=1.0,
            target=1,
            rule="keep",
            reason="The load is 200% (requests).",
        )
        for tick in range(200)
    )


def decide(deployment: ModelDeployment, **values: Any) -> ScalingDecision:
    return ScalingDecision.objects.create(
        **{
            "deployment": deployment,
            "at": timezone.now(),
            "mode": "on",
            "executor": "kubernetes",
            "before": 1,
            "target": 3,
            "rule": "scale_out",
            "reason": "Above 80% for 300 s, now 90% (requests).",
            "result": "failed",
            "result_text": "403 forbidden <b>",
            **values,
        }
    )


def test_a_policy_is_made_in_the_form(admin_client: Client, deployment: ModelDeployment) -> None:
    form = policy_form(deployment, mode="on", max_workers="8", schedule="reserve 20 mon-fri 08:00-18:00")
    answer = admin_client.post(ADD, form)
    assert answer.status_code == 302, answer.context["errors"]
    made = AutoscalePolicy.objects.get()
    assert (made.deployment, made.mode, made.max_workers) == (deployment, "on", 8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schedule": "whenever"}, "is no window"),
        ({"min_workers": "9"}, "The most workers are fewer than the fewest."),
        ({"scale_in_percent": "90"}, "must be below"),
        ({"executor": "systemd"}, "This executor needs its name."),
    ],
)
def test_the_form_says_what_is_wrong(
    admin_client: Client, deployment: ModelDeployment, values: dict[str, str], message: str
) -> None:
    answer = admin_client.post(ADD, policy_form(deployment, **values))
    assert answer.status_code == 200
    assert message in answer.content.decode()


def test_a_policys_page_explains_the_last_decisions(
    admin_client: Client, policy: AutoscalePolicy, deployment: ModelDeployment
) -> None:
    busy_hour(deployment)
    decide(deployment)
    page = admin_client.get(reverse("admin:deployments_autoscalepolicy_change", args=[policy.pk])).content.decode()
    assert "The load is 200% (requests)." in page
    assert "Above 80% for 300 s, now 90% (requests)." in page
    assert "403 forbidden &lt;b&gt;" in page


def test_what_if_tries_values_and_saves_nothing(
    admin_client: Client, policy: AutoscalePolicy, deployment: ModelDeployment
) -> None:
    busy_hour(deployment)
    url = reverse("admin:deployments_autoscalepolicy_try_on_samples", args=[policy.pk])
    page = admin_client.get(url).content.decode()
    assert "1 → 3" in page
    assert 'id="longest-wait"' in page
    tried = policy_form(deployment, max_workers="2", hours="1")
    answer = admin_client.get(url, tried)
    assert "1 → 2" in answer.content.decode()
    assert "1 → 3" not in answer.content.decode()
    policy.refresh_from_db()
    assert policy.max_workers == 4
    wrong = admin_client.get(url, {**tried, "schedule": "whenever"}).content.decode()
    assert "is no window" in wrong
    assert 'id="longest-wait"' not in wrong
    assert admin_client.get(url.replace(str(policy.pk), str(deployment.pk))).status_code == 404


def test_who_may_see_nothing_tries_nothing(client: Client, policy: AutoscalePolicy, user: User) -> None:
    client.force_login(user)
    url = reverse("admin:deployments_autoscalepolicy_try_on_samples", args=[policy.pk])
    assert client.get(url).status_code == 302
    user.is_staff = True
    user.save()
    assert client.get(url).status_code == 403


def test_decisions_are_listed_and_not_changed(admin_client: Client, deployment: ModelDeployment) -> None:
    decision = decide(deployment, inputs={"loads": {"requests": 0.9}})
    page = admin_client.get(DECISIONS).content.decode()
    assert "1 → 3" in page
    url = reverse("admin:deployments_scalingdecision_change", args=[decision.pk])
    assert "requests" in admin_client.get(url).content.decode()
    assert admin_client.post(url, {"target": 9}).status_code == 403


@pytest.mark.parametrize("count", [1, 20])
def test_list_of_decisions_takes_a_fixed_number_of_queries(
    admin_client: Client, deployment: ModelDeployment, django_assert_max_num_queries: DjangoAssertNumQueries, count: int
) -> None:
    for number in range(count):
        decide(deployment, at=timezone.now() - timedelta(seconds=number))
    with django_assert_max_num_queries(9):
        admin_client.get(DECISIONS)
