"""LoRA adapters: what the check finds in their files, what services allow, what gateways are told."""

import json
from pathlib import Path

import numpy as np
import pytest
from django.core.exceptions import ValidationError
from safetensors.numpy import save_file

from apps.deployments.adapters.enums import AdapterState
from apps.deployments.adapters.selectors import adapter_configs
from apps.deployments.adapters.services import adapter_create, adapter_judge, adapter_update
from apps.deployments.enums import EngineKind
from apps.deployments.models import LoraAdapter, ModelDeployment
from apps.deployments.services import deployment_create
from apps.tenants.models import AuditEvent, Tenant
from headrace_wire.adapters import AdapterQuestion
from headrace_worker.adapter_files import check_adapter, revision_of
from tests.support.tiny_adapter import tiny_adapter

QUESTION = AdapterQuestion(place="acme/tides", model="tiny-llama", max_rank=8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tiny_adapter(tmp_path / "adapters/acme/tides")
    return tmp_path / "adapters"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The header of a model is all that the check reads of it."""
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    shapes = {"self_attn.q_proj": (128, 128), "self_attn.v_proj": (64, 128), "mlp.down_proj": (128, 256)}
    tensors = {
        f"model.layers.{layer}.{name}.weight": np.zeros(shape, np.float32)
        for layer in range(2)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def problems(root: Path | None, **changes: object) -> str:
    fields: dict[str, object] = {"place": "acme/tides", "model": "tiny-llama", "max_rank": 8, **changes}
    found = check_adapter(root, AdapterQuestion(**fields))  # type: ignore[arg-type]
    assert found.is_accepted == (not found.problems)
    return " ".join(found.problems)


# ---- files


def test_what_fits_is_accepted_with_its_revision(root: Path, model: Path) -> None:
    found = check_adapter(root, AdapterQuestion(place="acme/tides", model=str(model), max_rank=8))
    assert (found.problems, found.notes, found.rank) == ([], [], 8)
    assert found.revision == revision_of(root / "acme/tides")
    assert found.target_modules == ["down_proj", "q_proj", "v_proj"]
    tiny_adapter(root / "acme/tides", seed=2)
    assert revision_of(root / "acme/tides") != found.revision


def test_another_model_is_told_by_its_modules_and_their_sizes(root: Path, model: Path) -> None:
    save_file({"model.layers.0.self_attn.q_proj.weight": np.zeros((64, 64), np.float32)}, model / "model.safetensors")
    told = problems(root, model=str(model))
    assert "“model.layers.0.self_attn.q_proj” has another size" in told
    assert "no module “model.layers.1." in told
    assert "made for “tiny-llama”" in problems(root, model="somebody/else")


def test_rank_is_bounded(root: Path) -> None:
    tiny_adapter(root / "acme/tides", rank=16)
    assert "rank is 16; the deployment's engine takes 8" in problems(root)


@pytest.mark.parametrize(
    "place", ["../tides", "acme/../../etc", "/etc", "acme/.hidden", "acme//tides", "", "a/b/c/d/e/f"]
)
def test_a_place_stays_below_the_folder(root: Path, place: str) -> None:
    assert "not one below" in problems(root, place=place)


def test_links_do_not_lead_out_of_the_folder(root: Path, tmp_path: Path) -> None:
    tiny_adapter(tmp_path / "outside")
    (root / "linked").symlink_to(tmp_path / "outside")
    assert "no folder" in problems(root, place="linked")
    (root / "half").mkdir()
    (root / "half/adapter_config.json").symlink_to(tmp_path / "outside/adapter_config.json")
    assert "has no adapter_config.json" in problems(root, place="half")


def test_pickles_are_refused_wherever_they_lie(root: Path) -> None:
    (root / "acme/tides/extra").mkdir()
    (root / "acme/tides/extra/optimizer.PT").write_bytes(b"\x80")
    assert "can run code" in problems(root)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"peft_type": "IA3"}, "does not describe a LoRA"),
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "biases"),
    ],
)
def test_what_is_not_served_is_named(root: Path, changes: dict[str, object], told: str) -> None:
    file = root / "acme/tides/adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    assert told in problems(root)


def test_broken_and_missing_files_are_refused(root: Path) -> None:
    weights = root / "acme/tides/adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    assert "not whole" in problems(root)
    weights.write_bytes(b"\xff" * 64)
    assert "no whole safetensors file" in problems(root)
    save_file({"base_model.model.lm_head.weight": np.zeros((4, 4), np.float32)}, weights)
    assert "no low-rank matrix" in problems(root)
    weights.unlink()
    assert "has no adapter_model.safetensors" in problems(root)
    assert "no folder for adapters" in problems(None)


# ---- rows


@pytest.fixture
def adapted(db: None, model: Path) -> ModelDeployment:
    row = ModelDeployment(name="tiny", model=str(model), engine=EngineKind.VLLM)
    row.engine_args = {"enable_lora": True, "max_lora_rank": 8}
    return deployment_create(deployment=row)


@pytest.fixture
def adapter(adapted: ModelDeployment, tenant: Tenant, root: Path, monkeypatch: pytest.MonkeyPatch) -> LoraAdapter:
    monkeypatch.setenv("HEADRACE_ADAPTER_DIR", str(root))
    row = LoraAdapter(tenant=tenant, deployment=adapted, name="tides", place="acme/tides")
    return adapter_create(adapter=row)


def test_only_a_checked_adapter_is_told_to_gateways(adapter: LoraAdapter, root: Path) -> None:
    assert adapter_configs() == []
    found = adapter_judge(adapter=adapter)
    assert found.problems == []
    (config,) = adapter_configs()
    assert (config.deployment, config.name, config.tenant_id) == ("tiny", "tides", adapter.tenant_id.hex)
    assert config.revision == revision_of(root / "acme/tides")
    adapter.is_active = False
    adapter_update(adapter=adapter)
    assert adapter_configs() == []
    actions = AuditEvent.all_tenants.filter(object_id=str(adapter.pk)).values_list("action", flat=True)
    assert {"adapter.created", "adapter.checked", "adapter.changed"} <= set(actions)


def test_one_that_lies_elsewhere_must_be_checked_again(adapter: LoraAdapter) -> None:
    adapter_judge(adapter=adapter)
    adapter.place = "acme/ebb"
    adapter_update(adapter=adapter)
    assert (adapter.state, adapter.revision) == (AdapterState.UNCHECKED, "")
    assert adapter_configs() == []


def test_a_refused_check_says_why_and_takes_it_away(adapter: LoraAdapter, root: Path) -> None:
    adapter_judge(adapter=adapter)
    (root / "acme/tides/weights.bin").write_bytes(b"")
    adapter_judge(adapter=adapter)
    adapter.refresh_from_db()
    assert adapter.state == AdapterState.REFUSED
    assert "can run code" in adapter.last_error
    assert adapter_configs() == []


def test_an_engine_without_adapters_is_said_at_the_check(adapter: LoraAdapter) -> None:
    adapter.deployment.engine_args = {}
    assert "without LoRA adapters" in adapter_judge(adapter=adapter).problems[0]


def test_places_names_and_tenants_are_checked(
    adapter: LoraAdapter, adapted: ModelDeployment, other_tenant: Tenant
) -> None:
    deployment, other = adapted, other_tenant
    with pytest.raises(ValidationError, match="names with / between"):
        adapter_create(adapter=LoraAdapter(tenant=other, deployment=deployment, name="x", place="../x"))
    with pytest.raises(ValidationError, match="Letters, digits"):
        adapter_create(adapter=LoraAdapter(tenant=other, deployment=deployment, name="a:b", place="x"))
    long = LoraAdapter(tenant=other, deployment=deployment, name="x" * 64, place="x")
    deployment.name = "d" * 64
    with pytest.raises(ValidationError, match="longer than 128"):
        adapter_create(adapter=long)
    deployment.name = "tiny"
    adapter.tenant = other
    with pytest.raises(ValidationError, match="stays as it is"):
        adapter_update(adapter=adapter)
    deployment_create(deployment=ModelDeployment(name="tiny:ebb", model="m", engine=EngineKind.SIMULATED))
    with pytest.raises(ValidationError, match="called so already"):
        adapter_create(adapter=LoraAdapter(tenant=other, deployment=deployment, name="ebb", place="x"))
