"""Admin pages of adapters and restarts."""

from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from redis import Redis

from apps.deployments.adapters.enums import AdapterState
from apps.deployments.models import LoraAdapter, ModelDeployment, RollingRestart
from apps.deployments.restarts.selectors import wanted_options
from apps.deployments.services import deployment_create
from apps.tenants.models import Tenant
from tests.deployments.test_admin import deployment_form, make_worker
from tests.deployments.test_fleet_mirror import register
from tests.support.tiny_adapter import tiny_adapter

ADD = reverse("admin:deployments_loraadapter_add")


def page(deployment: ModelDeployment) -> str:
    return reverse("admin:deployments_modeldeployment_change", args=(deployment.pk,))


def test_an_adapter_is_made_checked_and_shown(
    admin_client: Client, tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ADAPTER_DIR", str(tmp_path))
    tiny_adapter(tmp_path / "acme/tides", base="tiny")
    deployment = ModelDeployment(name="tiny", model="models/tiny", engine_args={"enable_lora": True})
    deployment_create(deployment=deployment)
    form = {"tenant": tenant.pk.hex, "deployment": deployment.pk.hex, "name": "tides", "is_active": "on"}
    refused = admin_client.post(ADD, {**form, "place": "../tides"})
    assert "names with / between" in refused.content.decode()
    admin_client.post(ADD, {**form, "place": "acme/tides"})
    adapter = LoraAdapter.all_tenants.get()
    assert adapter.state == AdapterState.UNCHECKED
    check = reverse("admin:deployments_loraadapter_check_one", args=(adapter.pk,))
    assert "Its files are read" in admin_client.get(check).content.decode()
    assert LoraAdapter.all_tenants.get().state == AdapterState.UNCHECKED
    checked = admin_client.post(check, follow=True).content.decode()
    adapter.refresh_from_db()
    assert adapter.state == AdapterState.CHECKED, adapter.last_error
    assert "tiny:tides can be used." in checked
    assert "this machine has no files of" in checked.lower(), "what could not be looked at is said"
    report = {adapter.pk.hex: {"revision": adapter.revision, "problem": ""}}
    make_worker("w1", deployment, adapters=report)
    make_worker("w2", deployment, adapters={adapter.pk.hex: {"revision": adapter.revision, "problem": "too large"}})
    shown = admin_client.get(reverse("admin:deployments_loraadapter_change", args=(adapter.pk,))).content.decode()
    assert ": loaded</li>" in shown
    assert ": too large</li>" in shown
    assert adapter.revision in shown


def test_the_forms_fields_become_engine_arguments(admin_client: Client) -> None:
    add = reverse("admin:deployments_modeldeployment_add")
    refused = admin_client.post(add, deployment_form(max_loras="2"))
    assert "means nothing without LoRA adapters" in refused.content.decode()
    admin_client.post(add, deployment_form(enable_lora="1", max_loras="2", max_lora_rank="8"))
    deployment = ModelDeployment.objects.get()
    lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    assert deployment.engine_args == {"block_size": 32, **lora}
    shown = admin_client.get(page(deployment)).content.decode()
    assert '<option value="1" selected>on</option>' in shown.replace("\n", "")


def test_older_options_are_told_and_a_restart_begun(
    admin_client: Client, live_redis: Redis, deployment: ModelDeployment
) -> None:
    present = wanted_options(deployment)
    for number, options in enumerate((present, "older", "older")):
        make_worker(f"w{number}", deployment, options=options)
        register(live_redis, f"w{number}", options=options, pid=number)
    assert "2 of 3 workers run older options." in admin_client.get(page(deployment)).content.decode()
    begin = reverse("admin:deployments_modeldeployment_restart_one_after_another", args=(deployment.pk,))
    assert "Each worker that runs older options ends" in admin_client.get(begin).content.decode()
    assert not RollingRestart.objects.exists()
    told = admin_client.post(begin, follow=True).content.decode()
    assert "The restart has begun" in told
    assert "Running: 0 of 3 restarted." in told
    assert "goes on already" in admin_client.post(begin, follow=True).content.decode()
    listed = reverse("admin:deployments_rollingrestart_changelist")
    restart = RollingRestart.objects.get()
    stop = {"action": "stop_chosen", "_selected_action": [restart.pk]}
    admin_client.post(listed, stop)
    restart.refresh_from_db()
    assert (restart.state, restart.current) == ("stopped", "")
    assert "Stopped by" in admin_client.get(listed).content.decode()
