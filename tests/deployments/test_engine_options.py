from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from apps.accounts.models import User
from apps.deployments.engine_args import engine_args_parse
from apps.deployments.engine_options import OptionError, options_join, options_split
from apps.deployments.enums import EngineKind
from apps.deployments.models import ModelDeployment
from apps.deployments.option_notes import notes_of
from apps.deployments.presets import PRESETS
from apps.deployments.selectors import deployment_configs
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent
from tests.deployments.test_admin import ADD, deployment_form

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
DRAFT = {"method": "draft_model", "model": "small/model", "num_speculative_tokens": 3}

ARGS = st.fixed_dictionaries(
    {},
    optional={
        "block_size": st.sampled_from([8, 16, 32, 64, 128]),
        "max_num_batched_tokens": st.integers(1, 1 << 20),
        "gpu_memory_utilization": st.sampled_from([0.5, 0.92, 1.0]),
        "gpu_memory_reserve_gib": st.sampled_from([0.5, 8.0]),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
        "tensor_parallel_size": st.integers(1, 8),
        "distributed_executor_backend": st.sampled_from(["mp", "ray"]),
        "speculative_config": st.sampled_from([NGRAM, DRAFT]),
        "enforce_eager": st.booleans(),
        "seed": st.integers(0, 9),
    },
)


@given(ARGS)
def test_arguments_come_apart_and_together_again(engine_args: dict[str, Any]) -> None:
    assert engine_args_parse(EngineKind.VLLM, engine_args) == engine_args
    options, rest = options_split(engine_args)
    assert set(rest) <= {"enforce_eager", "seed"}
    assert options_join(options, rest) == engine_args


@pytest.mark.parametrize(
    ("options", "rest", "field"),
    [
        ({"block_size": 32}, {"block_size": 64}, "block_size"),
        ({"speculation": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2}, {}, "prompt_lookup_max"),
        ({"speculation": "draft_model", "num_speculative_tokens": 4}, {}, "draft_model"),
        ({"num_speculative_tokens": 4}, {}, "num_speculative_tokens"),
        ({"speculation": "draft_model", "num_speculative_tokens": 4, "draft_model": "m", "prompt_lookup_min": 1}, {},
         "prompt_lookup_min"),
    ],
)  # fmt: skip
def test_a_contradiction_names_its_field(options: dict[str, Any], rest: dict[str, Any], field: str) -> None:
    with pytest.raises(OptionError) as caught:
        options_join(options, rest)
    assert caught.value.field == field


def option_form(**changes: Any) -> dict[str, Any]:
    return deployment_form(**{"engine_args": "{}", **changes})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 99999999999999999999999}', "Numbers are from -9223372036854775808 to 9223372036854775807 - at `$.a`."),
        ('{"cpu_offload_gb": Infinity}', "Numbers are from"),
        ('{"a": ' + "9" * 5000 + "}", "thousands of digits"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_carried_comes_back_with_a_reason(
    admin_client: Client, deployment: ModelDeployment, text: str, said: str
) -> None:
    stored = deployment.engine_args
    for url in (ADD, reverse("admin:deployments_modeldeployment_change", args=[deployment.pk])):
        answer = admin_client.post(url, option_form(engine_args=text))
        assert answer.status_code == 200
        (error,) = answer.context["adminform"].form.errors["engine_args"]
        assert said in error
    deployment.refresh_from_db()
    assert (ModelDeployment.objects.count(), deployment.engine_args) == (1, stored)


def test_fields_and_json_are_stored_as_one(admin_client: Client) -> None:
    form = option_form(
        engine_args='{"enforce_eager": true}',
        block_size="64",
        gpu_memory_reserve_gib="1.5",
        speculation="ngram",
        num_speculative_tokens="4",
        prompt_lookup_min="2",
        prompt_lookup_max="4",
        quantization="fp8_per_tensor",
    )
    assert admin_client.post(ADD, form).status_code == 302
    made = ModelDeployment.objects.get()
    expected = {"enforce_eager": True, "block_size": 64, "gpu_memory_reserve_gib": 1.5, "speculative_config": NGRAM}
    assert (made.engine_args, made.quantization) == (expected, "fp8_per_tensor")
    (config,) = deployment_configs()
    assert (config.engine_args, config.quantization) == (expected, "fp8_per_tensor")

    page = admin_client.get(reverse("admin:deployments_modeldeployment_change", args=[made.pk]))
    shown = page.context["adminform"].form
    assert (shown["block_size"].value(), shown["speculation"].value()) == (64, "ngram")
    assert shown["engine_args"].value() == '{"enforce_eager": true}'
    assert "Requests with min_p or logit_bias" in page.content.decode()


def test_an_option_is_taken_back_by_emptying_its_field(admin_client: Client) -> None:
    admin_client.post(ADD, option_form(block_size="64", engine_args='{"seed": 1}'))
    made = ModelDeployment.objects.get()
    change = reverse("admin:deployments_modeldeployment_change", args=[made.pk])
    assert admin_client.post(change, option_form(name="new", engine_args='{"seed": 1}')).status_code == 302
    made.refresh_from_db()
    assert made.engine_args == {"seed": 1}
    changed = AuditEvent.all_tenants.get(action=AuditAction.DEPLOYMENT_CHANGED)
    assert changed.details["engine_args"] == [{"seed": 1, "block_size": 64}, {"seed": 1}]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpu_memory_utilization": "1.5"}, "gpu_memory_utilization"),
        ({"block_size": "33"}, "block_size"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype"),
        ({"distributed_executor_backend": "evil.Executor"}, "distributed_executor_backend"),
        ({"quantization": "evil"}, "quantization"),
        ({"tensor_parallel_size": "0"}, "tensor_parallel_size"),
        ({"speculation": "ngram", "num_speculative_tokens": "4", "prompt_lookup_min": "5", "prompt_lookup_max": "4"},
         "engine_args"),
        ({"speculation": "medusa"}, "speculation"),
        ({"speculation": "ngram"}, "num_speculative_tokens"),
        ({"block_size": "32", "engine_args": '{"block_size": 64}'}, "block_size"),
        ({"engine": "simulated", "block_size": "32"}, "block_size"),
    ],
)  # fmt: skip
def test_a_refusal_stands_at_its_field(admin_client: Client, changes: dict[str, str], field: str) -> None:
    answer = admin_client.post(ADD, option_form(**changes))
    assert answer.status_code == 200
    assert list(answer.context["adminform"].form.errors) == [field]
    assert not ModelDeployment.objects.exists()


def test_who_only_looks_sees_the_options_as_they_are_stored(client: Client, db: None) -> None:
    made = ModelDeployment.objects.create(name="new", model="m", engine_args={"block_size": 64})
    user = User.objects.create_user("looks@example.org", password=None, is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_modeldeployment"))
    client.force_login(user)
    page = client.get(reverse("admin:deployments_modeldeployment_change", args=[made.pk])).content.decode()
    assert '"block_size"' in page
    assert "Block size" not in page
    assert "Check without saving" not in page


def test_a_stored_quantization_that_the_form_does_not_know_is_kept(admin_client: Client) -> None:
    made = ModelDeployment.objects.create(name="new", model="m", quantization="quark")
    change = reverse("admin:deployments_modeldeployment_change", args=[made.pk])
    assert admin_client.post(change, option_form(quantization="quark", model="other")).status_code == 302
    made.refresh_from_db()
    assert (made.model, made.quantization) == ("other", "quark")


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: str(preset["label"]))
def test_a_preset_fills_a_form_that_is_accepted(admin_client: Client, preset: dict[str, Any]) -> None:
    shown = admin_client.get(ADD)
    assert str(preset["label"]) in shown.content.decode()
    assert set(preset["fields"]) <= set(shown.context["adminform"].form.fields)
    values = {name: value for name, value in preset["fields"].items() if value is not False}
    assert admin_client.post(ADD, option_form(**values)).status_code == 302
    made = ModelDeployment.objects.get()
    assert made.engine_args["max_num_batched_tokens"] == preset["fields"]["max_num_batched_tokens"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"engine_args": {"speculative_config": NGRAM}}, "seed"),
        ({"quantization": "awq"}, "Smaller numbers"),
        ({"engine_args": {"kv_cache_dtype": "fp8"}}, "Smaller numbers"),
        ({"quantization": "fp8_per_tensor"}, "bfloat16 or float16"),
        ({"engine_args": {"enable_prefix_caching": False}}, "pinned prefixes"),
        ({"engine_args": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}, "4 GPUs of one machine"),
        ({"engine_args": {"tensor_parallel_size": 8, "distributed_executor_backend": "ray"}}, "several machines"),
    ],
)
def test_what_options_cost_is_said(changes: dict[str, Any], word: str) -> None:
    assert any(word in note for note in notes_of(ModelDeployment(name="d", model="m", **changes)))
    assert not notes_of(ModelDeployment(name="d", model="m"))
