"""Engine arguments that an admin may set, as types; everything else is refused.

An engine argument can run code or read files: `trust_remote_code`, `scheduler_cls`, `worker_cls`, `logits_processors`,
parser plug-ins, `load_format="pt"` (pickles), paths of any kind but a draft model's, which is named like the model
itself. None of those is here. What has its own column of the deployment (dtype, quantization, lengths) is not here
either, so that it has one home. `engine_options` says which of these the form shows as fields of their own.
"""

from typing import Annotated, Any, Literal

import msgspec

from apps.deployments.enums import EngineKind

LARGEST = (1 << 63) - 1
"""Of 64 bits, which is as far as a snapshot's numbers go."""

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=3_600_000)]
Revision = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]

DraftTokens = Annotated[int, msgspec.Meta(ge=1, le=64)]
LookupTokens = Annotated[int, msgspec.Meta(ge=1, le=256)]
ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=r"^[^\s\x00-\x1f]+\Z")]


class NgramSpeculation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="method", tag="ngram"):
    """Guesses the next tokens from what followed the same words before, in the prompt or the answer."""

    num_speculative_tokens: DraftTokens
    prompt_lookup_min: LookupTokens
    prompt_lookup_max: LookupTokens

    def __post_init__(self) -> None:
        """Refuses bounds that are crossed, as `msgspec.ValidationError`."""
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("prompt_lookup_min is larger than prompt_lookup_max")


class DraftModelSpeculation(
    msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="method", tag="draft_model"
):
    """Has a small model with the same tokenizer guess the next tokens."""

    model: ModelName
    num_speculative_tokens: DraftTokens


class VllmArgs(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Fields of vLLM's `EngineArgs` that size and tune an engine. UNSET leaves vLLM's own default."""

    block_size: Literal[8, 16, 32, 64, 128] | msgspec.UnsetType = msgspec.UNSET
    gpu_memory_utilization: Fraction | msgspec.UnsetType = msgspec.UNSET
    kv_cache_memory_bytes: Positive | msgspec.UnsetType = msgspec.UNSET
    gpu_memory_reserve_gib: Annotated[float, msgspec.Meta(gt=0, le=1024)] | msgspec.UnsetType = msgspec.UNSET
    """Ours, not vLLM's: the worker lowers the share of a device so far that this much of it stays free."""
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"] | msgspec.UnsetType = msgspec.UNSET
    num_gpu_blocks_override: Positive | msgspec.UnsetType = msgspec.UNSET
    cpu_offload_gb: Annotated[float, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    tensor_parallel_size: Positive | msgspec.UnsetType = msgspec.UNSET
    pipeline_parallel_size: Positive | msgspec.UnsetType = msgspec.UNSET
    distributed_executor_backend: Literal["mp", "ray"] | msgspec.UnsetType = msgspec.UNSET
    enable_expert_parallel: bool | msgspec.UnsetType = msgspec.UNSET
    max_num_batched_tokens: Positive | msgspec.UnsetType = msgspec.UNSET
    long_prefill_token_threshold: Count | msgspec.UnsetType = msgspec.UNSET
    enable_prefix_caching: bool | msgspec.UnsetType = msgspec.UNSET
    enable_chunked_prefill: bool | msgspec.UnsetType = msgspec.UNSET
    enforce_eager: bool | msgspec.UnsetType = msgspec.UNSET
    disable_sliding_window: bool | msgspec.UnsetType = msgspec.UNSET
    disable_cascade_attn: bool | msgspec.UnsetType = msgspec.UNSET
    disable_custom_all_reduce: bool | msgspec.UnsetType = msgspec.UNSET
    async_scheduling: bool | msgspec.UnsetType = msgspec.UNSET
    max_logprobs: Count | msgspec.UnsetType = msgspec.UNSET
    seed: Count | msgspec.UnsetType = msgspec.UNSET
    load_format: Literal["auto", "safetensors", "dummy"] | msgspec.UnsetType = msgspec.UNSET
    generation_config: Literal["auto", "vllm"] | msgspec.UnsetType = msgspec.UNSET
    revision: Revision | msgspec.UnsetType = msgspec.UNSET
    tokenizer_revision: Revision | msgspec.UnsetType = msgspec.UNSET
    performance_mode: Literal["balanced", "interactivity", "throughput"] | msgspec.UnsetType = msgspec.UNSET
    enable_lora: bool | msgspec.UnsetType = msgspec.UNSET
    max_loras: Annotated[int, msgspec.Meta(ge=1, le=256)] | msgspec.UnsetType = msgspec.UNSET
    max_lora_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] | msgspec.UnsetType = msgspec.UNSET
    max_cpu_loras: Annotated[int, msgspec.Meta(ge=1, le=4096)] | msgspec.UnsetType = msgspec.UNSET
    speculative_config: NgramSpeculation | DraftModelSpeculation | msgspec.UnsetType = msgspec.UNSET


class SimulatedArgs(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What the simulated engine can be told (`headrace_worker.simulated_core.SimulatedArgs` says what it means)."""

    ttft_ms: Milliseconds | msgspec.UnsetType = msgspec.UNSET
    tpot_ms: Milliseconds | msgspec.UnsetType = msgspec.UNSET
    answer_tokens: Count | msgspec.UnsetType = msgspec.UNSET
    answer: Annotated[str, msgspec.Meta(max_length=100_000)] | msgspec.UnsetType = msgspec.UNSET
    process: bool | msgspec.UnsetType = msgspec.UNSET
    max_loras: Count | msgspec.UnsetType = msgspec.UNSET
    kv_tokens: Count | msgspec.UnsetType = msgspec.UNSET
    block_tokens: Count | msgspec.UnsetType = msgspec.UNSET
    prefill_us: Microseconds | msgspec.UnsetType = msgspec.UNSET
    tpot_us_each: Microseconds | msgspec.UnsetType = msgspec.UNSET


_TYPES: dict[str, type[msgspec.Struct]] = {EngineKind.VLLM: VllmArgs, EngineKind.SIMULATED: SimulatedArgs}


class EngineArgsError(ValueError):
    """The arguments are not allowed; the message says which and why, for the person at the form."""


def engine_args_parse(engine: str, value: object) -> dict[str, Any]:
    """Returns `value` checked and reduced to plain types.

    Raises:
        EngineArgsError: Not an object, an argument that is not allowed, or a value of the wrong type or range; a
            number that snapshots cannot carry is one.
    """
    _numbers_check(value)
    try:
        parsed = msgspec.convert(value, _TYPES[engine])
    except KeyError as error:
        raise EngineArgsError(f"There is no engine “{engine}”.") from error
    except msgspec.ValidationError as error:
        allowed = ", ".join(sorted(_TYPES[engine].__struct_fields__))
        raise EngineArgsError(f"{error}. Allowed for this engine: {allowed}.") from error
    builtins: dict[str, Any] = msgspec.to_builtins(parsed)
    return builtins


def _numbers_check(value: object) -> None:
    """Refuses numbers that MessagePack or the database cannot hold, whatever argument they are of."""
    left = [("$", value)]
    while left:
        path, one = left.pop()
        if isinstance(one, dict):
            left += [(f"{path}.{name}", inner) for name, inner in one.items()]
        elif isinstance(one, list):
            left += [(f"{path}[{index}]", inner) for index, inner in enumerate(one)]
        elif isinstance(one, int | float) and not -LARGEST - 1 <= one <= LARGEST:
            raise EngineArgsError(f"Numbers are from {-LARGEST - 1} to {LARGEST} - at `{path}`.")
