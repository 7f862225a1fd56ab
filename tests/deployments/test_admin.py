from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from apps.deployments.models import ModelDeployment, Worker
from apps.deployments.selectors import deployment_configs
from apps.deployments.services import deployment_create, deployment_error_record
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Tenant

DEPLOYMENTS = reverse("admin:deployments_modeldeployment_changelist")
ADD = reverse("admin:deployments_modeldeployment_add")
WORKERS = reverse("admin:deployments_worker_changelist")


def deployment_form(**changes: Any) -> dict[str, Any]:
    form = {
        "name": "new",
        "model": "models/new",
        "is_active": "on",
        "engine": "vllm",
        "engine_args": '{"block_size": 32}',
        "dtype": "float32",
        "default_max_tokens": "256",
        "max_num_seqs": "8",
        "batch_min": "1",
        "batch_control": "shadow",
        "batch_tpot_goal_seconds": "0.05",
        "batch_ttft_goal_seconds": "0.5",
        "queue_limit": "64",
        "queue_timeout_seconds": "30",
        "ttft_timeout_seconds": "30",
        "inter_token_timeout_seconds": "10",
        "warm_up_seconds": "600",
        "sleep_after_seconds": "0",
        "breaker_error_share": "0.5",
        "breaker_min_ends": "20",
        "breaker_window_seconds": "60",
        "breaker_absent_seconds": "30",
        "breaker_open_seconds": "30",
        "breaker_probes": "3",
        "preload_priority": "10",
        "prompt_price": "0.5",
        "completion_price": "1.25",
    }
    return {**form, **changes}


def make_worker(incarnation: str, deployment: ModelDeployment | None = None, **values: Any) -> Worker:
    return Worker.objects.create(
        **{
            "incarnation": incarnation,
            "deployment": deployment,
            "deployment_name": "tiny",
            "engine": "vllm",
            "state": "ready",
            "host": "node-1",
            "pid": 1,
            "started_at": timezone.now(),
            "last_seen_at": timezone.now(),
            **values,
        }
    )


def test_a_deployment_is_made_for_chosen_tenants(admin_client: Client, tenant: Tenant) -> None:
    answer = admin_client.post(ADD, deployment_form(is_restricted="on", visible_tenants=[str(tenant.pk)]))
    assert answer.status_code == 302
    made = ModelDeployment.objects.get()
    assert (made.engine_args, list(made.visible_tenants.all())) == ({"block_size": 32}, [tenant])
    assert (made.prompt_price, made.cached_price, made.completion_price) == (Decimal("0.5"), None, Decimal("1.25"))
    assert AuditEvent.all_tenants.filter(action=AuditAction.DEPLOYMENT_CREATED).count() == 1


def test_what_a_deployment_costs_is_given_beside_its_prices(admin_client: Client) -> None:
    answer = admin_client.post(ADD, deployment_form(worker_hour_cost="2.5", kwh_cost=""))
    assert answer.status_code == 302
    made = ModelDeployment.objects.get()
    assert (made.worker_hour_cost, made.kwh_cost) == (Decimal("2.5"), None)
    assert "What you pay for an hour of one worker" in admin_client.get(ADD).content.decode()


def test_what_loads_first_is_said_in_the_form_and_to_workers(admin_client: Client) -> None:
    refused = admin_client.post(ADD, deployment_form(preload_priority="1001"))
    assert "less than or equal to 1000" in refused.content.decode()
    assert "loads and warms up first" in refused.content.decode()
    assert admin_client.post(ADD, deployment_form(preload_priority="-1")).status_code == 200
    assert admin_client.post(ADD, deployment_form(preload_priority="7")).status_code == 302
    (config,) = deployment_configs()
    assert config.preload_priority == 7


@pytest.mark.parametrize(
    ("engine_args", "message"),
    [
        ('{"trust_remote_code": true}', "trust_remote_code"),
        ('{"scheduler_cls": "evil.Scheduler"}', "scheduler_cls"),
        ('{"gpu_memory_utilization": 2}', "gpu_memory_utilization"),
        ("[1]", "Expected `object`"),
        ("{", "Enter a valid JSON"),
    ],
)
def test_engine_arguments_are_refused_in_the_form(admin_client: Client, engine_args: str, message: str) -> None:
    answer = admin_client.post(ADD, deployment_form(engine_args=engine_args))
    assert answer.status_code == 200
    assert message in str(answer.context["adminform"].form.errors["engine_args"].as_data())
    assert not ModelDeployment.objects.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_min": "8", "batch_max": "4"}, "The largest batch is smaller than the smallest."),
        ({"batch_max": "9"}, "A batch cannot be larger than the requests that a worker can run."),
        ({"max_model_len": "256"}, "The default length of an answer must be below"),
    ],
)
def test_numbers_that_contradict_each_other_are_explained(
    admin_client: Client, changes: dict[str, str], message: str
) -> None:
    answer = admin_client.post(ADD, deployment_form(**changes))
    assert answer.status_code == 200
    assert message in answer.content.decode()


def test_an_engines_message_is_shown_escaped(admin_client: Client, deployment: ModelDeployment) -> None:
    deployment_error_record(name="tiny", message="<script>alert(1)</script> ValueError: no such dtype")
    page = admin_client.get(reverse("admin:deployments_modeldeployment_change", args=[deployment.pk])).content.decode()
    assert "ValueError: no such dtype" in page
    assert "<script>alert(1)" not in page
    assert "engine error" in admin_client.get(DEPLOYMENTS).content.decode()


def test_deleting_goes_through_the_service(admin_client: Client, deployment: ModelDeployment) -> None:
    url = reverse("admin:deployments_modeldeployment_delete", args=[deployment.pk])
    assert admin_client.post(url, {"post": "yes"}).status_code == 302
    assert AuditEvent.all_tenants.filter(action=AuditAction.DEPLOYMENT_DELETED).count() == 1


def test_workers_are_only_looked_at(admin_client: Client, deployment: ModelDeployment) -> None:
    worker = make_worker("worker-1", deployment)
    change = reverse("admin:deployments_worker_change", args=[worker.pk])
    assert "workers_live.js" in admin_client.get(WORKERS).content.decode()
    assert admin_client.get(change).status_code == 200
    assert admin_client.post(change, {"state": "lost"}).status_code == 403
    assert admin_client.get(reverse("admin:deployments_worker_add")).status_code == 403


def test_lists_take_a_fixed_number_of_queries(
    admin_client: Client, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def make(first: int, count: int) -> None:
        for number in range(first, first + count):
            made = deployment_create(deployment=ModelDeployment(name=f"model-{number}", model="m"))
            make_worker(f"worker-{number}", made)

    make(0, 1)
    for url, queries in ((DEPLOYMENTS, 4), (WORKERS, 5)):
        admin_client.get(url)
        with django_assert_num_queries(queries, info=url):
            admin_client.get(url)
    make(1, 8)
    for url, queries in ((DEPLOYMENTS, 4), (WORKERS, 5)):
        with django_assert_num_queries(queries, info=url):
            admin_client.get(url)


def test_a_quarantined_worker_stands_out(admin_client: Client, deployment: ModelDeployment) -> None:
    worker = make_worker("worker-1", deployment, state="broken", quarantined_at=timezone.now(), engine_failures=6)
    assert "Quarantined" in admin_client.get(WORKERS).content.decode()
    page = admin_client.get(reverse("admin:deployments_worker_change", args=[worker.pk])).content.decode()
    assert reverse("admin:ops_livestream_process", args=["worker-1"]) in page
