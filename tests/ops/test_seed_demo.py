import json
import stat
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.core.management import call_command
from redis import Redis

from apps.accounts.models import ApiKey, User
from apps.accounts.services import api_key_revoke
from apps.deployments.models import ModelDeployment
from apps.guardrails.models import GuardrailPolicy
from apps.tenants.models import AuditEvent, Membership, Tenant
from headrace_wire.api_key import ApiKeyToken


def seed(path: Path, **options: Any) -> dict[str, Any]:
    out = StringIO()
    chosen = {"model": "tiny", "model_path": "models/tiny", "engine": "simulated", "json": True, **options}
    call_command("seed_demo", state_file=path, stdout=out, **chosen)
    seeded: dict[str, Any] = json.loads(out.getvalue())
    return seeded


@pytest.fixture
def path(tmp_path: Path, db: None) -> Path:
    return tmp_path / "state" / "demo.json"


def test_makes_what_a_demo_needs(path: Path) -> None:
    seeded = seed(path)
    assert seeded.keys() == {"admin", "user", "api_key", "model"}
    admin = authenticate(username=seeded["admin"]["email"], password=seeded["admin"]["password"])
    user = authenticate(username=seeded["user"]["email"], password=seeded["user"]["password"])
    assert isinstance(admin, User)
    assert isinstance(user, User)
    assert (admin.is_superuser, user.is_staff) == (True, False)
    tenant = Tenant.objects.get()
    roles = Membership.objects.for_tenant(tenant).order_by("user__email").values_list("user__email", "role")
    assert list(roles) == [(admin.email, "owner"), (user.email, "member")]
    token = ApiKeyToken.parse(seeded["api_key"])
    assert token is not None
    assert token.matches(bytes(ApiKey.objects.for_tenant(tenant).get().secret_sha256))
    assert ModelDeployment.objects.get().engine == "simulated"
    policy = GuardrailPolicy.objects.for_tenant(tenant).get()
    assert not policy.is_active, "an example to look at"


def test_a_second_run_gives_the_same_and_changes_nothing(path: Path) -> None:
    first = seed(path)
    events = AuditEvent.all_tenants.count()
    kept = path.stat().st_mtime_ns
    assert seed(path) == first
    assert AuditEvent.all_tenants.count() == events
    assert path.stat().st_mtime_ns == kept


def test_only_the_owner_can_read_the_file(path: Path) -> None:
    seed(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["demo.json"]


def test_another_model_is_added_beside(path: Path) -> None:
    first = seed(path)
    second = seed(path, model="other", model_path="models/other", engine="vllm")
    assert second == {**first, "model": "other"}
    assert set(ModelDeployment.objects.values_list("name", "engine")) == {("tiny", "simulated"), ("other", "vllm")}


def test_a_moved_model_is_followed(path: Path) -> None:
    seed(path)
    seed(path, model_path="elsewhere/tiny")
    assert ModelDeployment.objects.get().model == "elsewhere/tiny"


def test_what_was_lost_is_made_again(path: Path) -> None:
    first = seed(path)
    api_key_revoke(api_key=ApiKey.all_tenants.get())
    second = seed(path)
    assert second["api_key"] != first["api_key"]
    assert second["admin"] == first["admin"]

    path.write_text("{broken")
    third = seed(path)
    password = third["admin"]["password"]
    assert password != first["admin"]["password"]
    assert authenticate(username=third["admin"]["email"], password=password) is not None


def test_prints_no_secret_unless_asked(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeded = seed(path)
    out = StringIO()
    call_command("seed_demo", state_file=path, model="tiny", model_path="models/tiny", stdout=out)
    printed = out.getvalue() + capsys.readouterr().err
    for secret in (seeded["api_key"], seeded["admin"]["password"], seeded["user"]["password"]):
        assert secret not in printed


def test_publish_snapshot_says_its_version(live_redis: Redis, tenant: Tenant) -> None:
    out = StringIO()
    call_command("publish_snapshot", stdout=out)
    assert out.getvalue().startswith("Version ")
