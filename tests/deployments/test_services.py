from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from apps.deployments import services
from apps.deployments.enums import EngineKind
from apps.deployments.models import ModelDeployment
from apps.deployments.selectors import deployment_configs, deployment_get, deployment_list
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Tenant
from headrace_wire.snapshot import DeploymentConfig


def test_snapshot_section(deployment: ModelDeployment) -> None:
    assert deployment_configs() == [DeploymentConfig(id=deployment.id.hex, name="tiny", model="models/tiny")]
    deployment.prefills_drafts = False
    services.deployment_update(deployment=deployment)
    assert not deployment_configs()[0].prefills_drafts


def test_prices_are_whole_millionths_in_the_snapshot(deployment: ModelDeployment) -> None:
    deployment.prompt_price = Decimal("0.15")
    deployment.completion_price = Decimal("0.000001")
    services.deployment_update(deployment=deployment)
    (config,) = deployment_configs()
    assert (config.prompt_price, config.cached_price, config.completion_price) == (150_000, 150_000, 1)
    deployment.cached_price = Decimal(0)
    services.deployment_update(deployment=deployment)
    assert deployment_configs()[0].cached_price == 0, "free is not the same as not set"


def test_what_workers_know_it_by_stays(deployment: ModelDeployment) -> None:
    deployment.name = "other"
    with pytest.raises(ValidationError, match="know it by this name"):
        services.deployment_update(deployment=deployment)


def test_changes_are_audited(deployment: ModelDeployment, tenant: Tenant) -> None:
    deployment.engine_args = {"block_size": 32}
    deployment.is_restricted = True
    services.deployment_update(deployment=deployment, visible_tenants=[tenant])
    event = AuditEvent.all_tenants.get(action=AuditAction.DEPLOYMENT_CHANGED)
    assert event.details == {
        "engine_args": [{}, {"block_size": 32}],
        "is_restricted": [False, True],
        "visible_tenants": [[], ["Acme"]],
    }


def test_only_the_chosen_tenants_see_a_restricted_one(
    deployment: ModelDeployment, tenant: Tenant, other_tenant: Tenant
) -> None:
    assert list(deployment_list(tenant=other_tenant)) == [deployment]
    deployment.is_restricted = True
    services.deployment_update(deployment=deployment, visible_tenants=[tenant])
    assert list(deployment_list(tenant=tenant)) == [deployment]
    assert not deployment_list(tenant=other_tenant)
    assert deployment_configs()[0].visible_tenant_ids == frozenset({tenant.id.hex})


def test_restricted_to_nobody_is_nobody(deployment: ModelDeployment, tenant: Tenant) -> None:
    deployment.is_restricted = True
    services.deployment_update(deployment=deployment, visible_tenants=[])
    assert not deployment_list(tenant=tenant)
    assert deployment_configs()[0].visible_tenant_ids == frozenset()


def test_a_switched_off_one_is_not_listed(deployment: ModelDeployment, tenant: Tenant) -> None:
    deployment.is_active = False
    services.deployment_update(deployment=deployment)
    assert not deployment_list(tenant=tenant)
    assert not deployment_configs()[0].active


@pytest.mark.parametrize(
    "values",
    [
        {"engine_args": {"trust_remote_code": True}},
        {"engine_args": {"tpot_ms": 1}},
        {"engine": "other"},
        {"batch_min": 0},
        {"batch_min": 8, "batch_max": 4},
        {"batch_max": 64, "max_num_seqs": 32},
        {"max_model_len": 512, "default_max_tokens": 512},
        {"name": "has space"},
        {"name": "new\n"},
        {"name": "-leading"},
        {"quantization": "AWQ; rm"},
        {"ttft_timeout_seconds": 0.0},
        {"dtype": "int3"},
        {"model": ""},
        {"prompt_price": Decimal(-1)},
        {"completion_price": Decimal("0.0000001")},
        {"worker_hour_cost": Decimal(-1)},
        {"kwh_cost": Decimal("0.0000001")},
    ],
)
def test_what_cannot_work_is_refused(db: None, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        services.deployment_create(deployment=ModelDeployment(**{"name": "new", "model": "m", **values}))
    assert not ModelDeployment.objects.exists()


@pytest.mark.parametrize(
    "values",
    [
        {"engine": "other"},
        {"max_num_seqs": 0},
        {"batch_min": 8, "batch_max": 4},
        {"batch_max": 64},
        {"batch_min": 64},
        {"max_model_len": 100},
        {"prompt_price": Decimal(-1)},
        {"cached_price": Decimal(-1)},
        {"worker_hour_cost": Decimal(-1)},
        {"kwh_cost": Decimal(-1)},
    ],
)
def test_the_database_refuses_what_goes_around_the_services(
    deployment: ModelDeployment, values: dict[str, Any]
) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        ModelDeployment.objects.filter(pk=deployment.pk).update(**values)


def test_a_name_is_given_once(deployment: ModelDeployment) -> None:
    with pytest.raises(ValidationError):
        services.deployment_create(deployment=ModelDeployment(name="tiny", model="m"))


def test_deleting_leaves_an_audit_row(deployment: ModelDeployment) -> None:
    services.deployment_delete(deployment=deployment)
    assert deployment_get(name="tiny") is None
    event = AuditEvent.all_tenants.get(action=AuditAction.DEPLOYMENT_DELETED)
    assert event.object_label == "tiny"


def test_an_engines_message_is_kept_without_keys_and_cleared(deployment: ModelDeployment) -> None:
    secret = "B" * 40
    message = f"ValueError: max_model_len is too large (sk-hr-aaaabbbbcccc-{secret})"
    assert services.deployment_error_record(name="tiny", message="x" * 9000 + message)
    deployment.refresh_from_db()
    assert deployment.last_error.endswith("(sk-hr-aaaabbbbcccc-…)")
    assert len(deployment.last_error) == services.ERROR_LENGTH
    assert secret not in deployment.last_error
    assert deployment.last_error_at is not None

    assert not services.deployment_error_record(name="tiny", message="x" * 9000 + message)
    assert services.deployment_error_record(name="tiny", message="")
    cleared = ModelDeployment.objects.get()
    assert (cleared.last_error, cleared.last_error_at) == ("", None)


def test_simulated_engines_take_their_own_arguments(db: None) -> None:
    made = ModelDeployment(
        name="sim", model="none", engine=EngineKind.SIMULATED, engine_args={"ttft_ms": 100, "tpot_ms": 20}
    )
    services.deployment_create(deployment=made)
    assert deployment_configs()[0].engine_args == {"ttft_ms": 100, "tpot_ms": 20}
