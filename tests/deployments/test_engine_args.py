import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.deployments.engine_args import EngineArgsError, SimulatedArgs, VllmArgs, engine_args_parse
from apps.deployments.enums import EngineKind

DANGEROUS = (
    "trust_remote_code",
    "scheduler_cls",
    "worker_cls",
    "worker_extension_cls",
    "logits_processors",
    "reasoning_parser_plugin",
    "io_processor_plugin",
    "hf_overrides",
    "model_class_overrides",
    "kv_transfer_config",
    "additional_config",
    "tokenizer",
    "download_dir",
    "allowed_local_media_path",
    "hf_config_path",
    "model_loader_extra_config",
    "log_config_file",
    "code_revision",
    "hf_token",
    "speculative_config",
    "default_mm_loras",
)

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("name", DANGEROUS)
@pytest.mark.parametrize("engine", EngineKind.values)
def test_what_can_run_code_or_read_files_is_refused(engine: str, name: str) -> None:
    with pytest.raises(EngineArgsError, match=name):
        engine_args_parse(engine, {name: True})


@pytest.mark.parametrize(
    "value",
    [
        {"load_format": "pt"},
        {"load_format": "/models/evil"},
        {"generation_config": "/etc"},
        {"revision": "../../etc/passwd"},
        {"revision": "main\n"},
        {"gpu_memory_utilization": 1.5},
        {"gpu_memory_utilization": "0.9"},
        {"gpu_memory_utilization": True},
        {"block_size": 33},
        {"tensor_parallel_size": 0},
        {"enforce_eager": 1},
        {"dtype": "float32"},
        {"kv_cache_dtype": "bfloat16"},
        {"gpu_memory_reserve_gib": 0},
        {"distributed_executor_backend": "evil.Executor"},
        {"speculative_config": {"method": "custom_class", "model": "evil.Proposer", "num_speculative_tokens": 1}},
        {"speculative_config": {"model": "m", "num_speculative_tokens": 1}},
        {"speculative_config": {"method": "draft_model", "model": "", "num_speculative_tokens": 1}},
        {"speculative_config": {**NGRAM, "quantization": "x"}},
        {"speculative_config": {**NGRAM, "prompt_lookup_min": 5}},
        [],
        None,
        "",
        7,
    ],
)
def test_values_that_cannot_be_are_refused(value: object) -> None:
    with pytest.raises(EngineArgsError):
        engine_args_parse(EngineKind.VLLM, value)


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 1e300, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["a", "kv_cache_memory_bytes", "cpu_offload_gb"])
def test_numbers_that_no_snapshot_can_carry_are_refused(name: str, number: float) -> None:
    for engine in EngineKind.values:
        with pytest.raises(EngineArgsError, match=rf"to 9223372036854775807 - at `\$\.{name}`"):
            engine_args_parse(engine, {name: number})
    with pytest.raises(EngineArgsError, match=r"at `\$\.a\[1\]\.b`"):
        engine_args_parse(EngineKind.VLLM, {"a": [1, {"b": number}]})


def test_allowed_ones_come_back_as_they_were() -> None:
    value = {"gpu_memory_utilization": 0.9, "block_size": 32, "enforce_eager": True, "revision": "v1.0"}
    assert engine_args_parse(EngineKind.VLLM, value) == value
    assert engine_args_parse(EngineKind.VLLM, {}) == {}
    assert engine_args_parse(EngineKind.SIMULATED, {"tpot_ms": 20}) == {"tpot_ms": 20}


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(EngineArgsError, match="no engine"):
        engine_args_parse("other", {})


@given(engine=st.sampled_from(EngineKind.values), value=PLAIN)
def test_nothing_but_allowed_names_ever_passes(engine: str, value: object) -> None:
    try:
        parsed = engine_args_parse(engine, value)
    except EngineArgsError:
        return
    allowed = {*VllmArgs.__struct_fields__, *SimulatedArgs.__struct_fields__}
    assert set(parsed) <= allowed
    assert engine_args_parse(engine, parsed) == parsed
