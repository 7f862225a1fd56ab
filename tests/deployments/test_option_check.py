"""The check of a form: its own process, started for real; vLLM's part is in `tests/worker/test_engine_options.py`."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from apps.accounts.models import User
from apps.deployments import option_check
from apps.deployments.models import ModelDeployment
from apps.deployments.option_check import CheckUnavailableError, deployment_check
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.deployments.test_admin import deployment_form
from tests.support.snapshots import simulated

CHECK = reverse("admin:deployments_modeldeployment_check")


async def test_a_simulated_deployment_is_judged_in_a_process() -> None:
    report = await deployment_check(simulated("sim", engine_args={"tpot_ms": 3}))
    assert (report.is_accepted, report.engine) == (True, "simulated")
    report = await deployment_check(simulated("sim", engine_args={"tpot": 3}))
    assert not report.is_accepted
    assert "tpot" in report.problem


async def test_one_at_a_time_and_one_that_is_left_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec
    started = asyncio.Event()

    async def noting(*args: Any, **kwargs: Any) -> asyncio.subprocess.Process:
        processes.append(await start(*args, **kwargs))
        started.set()
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noting)
    first = asyncio.create_task(deployment_check(simulated("sim")))
    await started.wait()
    with pytest.raises(CheckUnavailableError, match="Another check"):
        await deployment_check(simulated("other"))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert processes[0].returncode is not None
    assert (await deployment_check(simulated("other"))).is_accepted


async def test_one_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_check, "DEADLINE_SECONDS", 0.0)
    with pytest.raises(CheckUnavailableError, match="no answer"):
        await deployment_check(simulated("sim"))


async def test_what_is_no_report_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec.json, "encode", lambda _: b"{")
    with pytest.raises(CheckUnavailableError, match="standard input is no deployment"):
        await deployment_check(DeploymentConfig(id="d", name="d", model="m", engine=EngineKind.SIMULATED))


async def test_a_gateway_without_vllm_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise ModuleNotFoundError(\"No module named 'vllm'\")\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with pytest.raises(CheckUnavailableError, match="not installed beside this gateway"):
        await deployment_check(DeploymentConfig(id="d", name="d", model="m"))


# ---- the form's address


def test_the_form_is_judged_and_nothing_saved(admin_client: Client) -> None:
    form = deployment_form(engine="simulated", engine_args='{"tpot_ms": 3}')
    told = admin_client.post(CHECK, form).json()
    assert (told["verdict"], told["judge"]) == ("accepted", "simulated")
    told = admin_client.post(CHECK, {**form, "max_num_seqs": "0", "block_size": "33"}).json()
    assert told["verdict"] == "refused"
    assert any("max_num_seqs" in text for text in told["problems"])
    assert not ModelDeployment.objects.exists()
    assert admin_client.get(CHECK).status_code == 405


def test_what_is_stored_is_judged_as_it_would_become(admin_client: Client, deployment: ModelDeployment) -> None:
    """Its name is taken, by itself."""
    form = deployment_form(name=deployment.name, engine="simulated", engine_args="{}")
    assert "already exists" in str(admin_client.post(CHECK, form).json()["problems"])
    told = admin_client.post(f"{CHECK}?deployment={deployment.pk}", form).json()
    assert told["verdict"] == "accepted"
    stored = ModelDeployment.objects.get()
    assert (stored.engine, stored.model) == (deployment.engine, deployment.model)


def test_only_who_may_change_deployments_may_check(client: Client, db: None) -> None:
    form = deployment_form(engine="simulated", engine_args="{}")
    assert client.post(CHECK, form).status_code == 403
    user = User.objects.create_user("looks@example.org", password=None, is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_modeldeployment"))
    client.force_login(user)
    assert client.post(CHECK, form).status_code == 403
