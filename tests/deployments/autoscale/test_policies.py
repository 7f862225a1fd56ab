"""Policies as stored: what is refused, what is audited, what decisions go by."""

from datetime import time
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from apps.deployments.autoscale.enums import ExecutorKind
from apps.deployments.autoscale.schedule_text import ScheduleError, schedule_parse
from apps.deployments.autoscale.services import (
    autoscale_policy_create,
    autoscale_policy_delete,
    autoscale_policy_update,
)
from apps.deployments.autoscale.terms import PolicyTerms, Window, WindowKind
from apps.deployments.models import AutoscalePolicy, ModelDeployment
from apps.tenants.models import AuditEvent


def test_defaults_are_those_of_the_issue(deployment: ModelDeployment) -> None:
    policy = autoscale_policy_create(policy=AutoscalePolicy(deployment=deployment))
    assert policy.terms == PolicyTerms()
    assert policy.mode == "shadow"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"min_workers": 5, "max_workers": 4}, "__all__"),
        ({"max_workers": 0, "min_workers": 0}, "max_workers"),
        ({"scale_in_percent": 80}, "__all__"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"schedule": "reserve 20 weekdays 8-18"}, "schedule"),
        ({"schedule": "reserve 20 mon-fri 08:00-18:00\n" * 101}, "schedule"),
        ({"queue_goal_seconds": 1e-320}, "queue_goal_seconds"),
        ({"ttft_goal_seconds": 0.0009}, "ttft_goal_seconds"),
        ({"worker_requests_per_second": 1e-9}, "worker_requests_per_second"),
        ({"executor": ExecutorKind.KUBERNETES}, "workload"),
        ({"executor": ExecutorKind.KUBERNETES, "workload": "w", "namespace": ""}, "namespace"),
        ({"executor": ExecutorKind.SYSTEMD, "workload": "../evil"}, "workload"),
        ({"executor": ExecutorKind.SYSTEMD, "workload": "--now"}, "workload"),
    ],
)
def test_what_makes_no_sense_is_refused(deployment: ModelDeployment, values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        autoscale_policy_create(policy=AutoscalePolicy(deployment=deployment, **values))
    assert field in caught.value.message_dict
    assert not AutoscalePolicy.objects.exists()


def test_the_most_and_the_least_are_taken(deployment: ModelDeployment) -> None:
    policy = AutoscalePolicy(
        deployment=deployment,
        schedule="reserve 20 mon-fri 08:00-18:00\n" * 100,
        queue_goal_seconds=0.001,
        ttft_goal_seconds=0,
        worker_requests_per_second=0.001,
    )
    assert len(autoscale_policy_create(policy=policy).terms.windows) == 100
    policy.schedule += "release 50 daily 22:00-06:00"
    with pytest.raises(ValidationError, match="100 windows at most; these are 101"):
        autoscale_policy_update(policy=policy)


def test_a_deployment_has_one_policy_and_changes_are_audited(deployment: ModelDeployment) -> None:
    policy = autoscale_policy_create(policy=AutoscalePolicy(deployment=deployment))
    with pytest.raises(ValidationError):
        autoscale_policy_create(policy=AutoscalePolicy(deployment=deployment))
    policy.max_workers = 9
    autoscale_policy_update(policy=policy)
    autoscale_policy_delete(policy=policy)
    rows = AuditEvent.all_tenants.filter(object_type="deployments.autoscalepolicy").order_by("pk")
    assert [row.action for row in rows] == ["autoscale.created", "autoscale.changed", "autoscale.deleted"]
    assert rows[1].details == {"max_workers": [4, 9]}


def test_a_schedule_is_written_in_lines() -> None:
    windows = schedule_parse(
        "Reserve 20% mon-fri 8:00-18:00\n\n release 50 daily 22:00-06:00\nreserve 100 sat,mon 00:00 - 23:59"
    )
    assert windows == (
        Window(WindowKind.RESERVE, frozenset(range(5)), time(8), time(18), 20),
        Window(WindowKind.RELEASE, frozenset(range(7)), time(22), time(6), 50),
        Window(WindowKind.RESERVE, frozenset({5, 0}), time(0), time(23, 59), 100),
    )
    assert schedule_parse("release 10 sat-mon 01:00-02:00")[0].days == {5, 6, 0}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("keep 20 daily 08:00-18:00", "is no window"),
        ("release 101 daily 08:00-18:00", "from 1 to 100"),
        ("release 0 daily 08:00-18:00", "from 1 to 100"),
        ("reserve 20 daily 25:00-18:00", "no such time"),
        ("reserve 20 daily 08:00-08:00", "ends when it begins"),
        ("reserve 20 mon-abc 08:00-09:00", "days are mon"),
    ],
)
def test_a_line_that_is_no_window_is_named(line: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        schedule_parse(f"release 50 daily 22:00-06:00\n{line}")
