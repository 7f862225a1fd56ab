"""How a deployment and a request read in vLLM's words. Plain dictionaries; imports nothing of vLLM."""

import re
from typing import Any

from headrace_wire.messages import SamplingParams, StructuredOutput
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.engine import EngineRequest
from headrace_worker.engine_core.checkpoints.settings import CHECKPOINT_SETTINGS, CheckpointSettings
from headrace_worker.engine_core.request_fields import CHECKPOINT, CREDIT, GENERATED, SEED, TOP_K, TOP_P

CPU_BLOCK_SIZE = 32
"""The smallest that vLLM's CPU attention takes: a prefix hit is worth whole blocks."""

UNIPROC_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""As a class path, because vLLM rewrites the name `uni` to `mp` on CPU: one process and ~570 MB less."""


RESERVE = "gpu_memory_reserve_gib"
"""Ours, and no argument of vLLM's: what stays free on each device."""

DEFAULT_SHARE = 0.92
"""vLLM's own `gpu_memory_utilization`."""


def engine_arguments(
    deployment: DeploymentConfig,
    *,
    on_cpu: bool,
    checkpoints: CheckpointSettings | None = None,
    device_bytes: int | None = None,
) -> dict[str, Any]:
    """Return `AsyncEngineArgs` for a deployment: our defaults, its own arguments, then what is not for it to say.

    `device_bytes` is the memory of a GPU, for a deployment that wants some of it left free.
    """
    defaults: dict[str, Any] = {
        "max_num_seqs": deployment.max_num_seqs,
        "dtype": deployment.dtype,
        "enable_prefix_caching": True,
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    if deployment.max_model_len is not None:
        defaults["max_model_len"] = deployment.max_model_len
    if deployment.quantization:
        defaults["quantization"] = deployment.quantization
    if on_cpu:
        defaults |= {"enforce_eager": True, "block_size": CPU_BLOCK_SIZE}
        if deployment.dtype == "auto":
            # bfloat16 gives other text for the same request, and wrong text in eager mode
            defaults["dtype"] = "float32"
    fixed: dict[str, Any] = {
        "model": deployment.model,
        "scheduling_policy": "priority",
        "enable_log_requests": False,
        "disable_log_stats": False,
    }
    if checkpoints is not None:
        fixed["kv_transfer_config"] = kv_transfer_arguments(checkpoints)
    if on_cpu:
        fixed["distributed_executor_backend"] = UNIPROC_EXECUTOR
    arguments = defaults | deployment.engine_args | fixed
    reserve = arguments.pop(RESERVE, None)
    if reserve is not None and device_bytes:
        arguments["gpu_memory_utilization"] = share_beside(
            reserve, device_bytes, arguments.get("gpu_memory_utilization", DEFAULT_SHARE)
        )
    return arguments


def share_beside(reserve_gib: float, device_bytes: int, share: float) -> float:
    """Return `share` of a device, or less where that would not leave `reserve_gib` free; 0 and below is none at all."""
    return min(share, 1 - reserve_gib * (1 << 30) / device_bytes)


def kv_transfer_arguments(checkpoints: CheckpointSettings) -> dict[str, Any]:
    """Return vLLM `KVTransferConfig` for our connector: what it cannot load is computed.

    With a tier in main memory (vLLM's own) that one comes first, and ours is for what it has not.
    """
    ours = {
        "kv_connector": "CheckpointConnector",
        "kv_connector_module_path": "headrace_worker.engine_core.checkpoints.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {CHECKPOINT_SETTINGS: checkpoints.to_plain()},
    }
    if not checkpoints.offload_gib:
        return {**ours, "kv_load_failure_policy": "recompute"}
    tier = {
        "spec_name": "CPUOffloadingSpec",
        "cpu_bytes_to_use": checkpoints.offload_gib << 30,
        "eviction_policy": "lru",
        "offload_prompt_only": False,
    }
    offloading = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": tier,
    }
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [offloading, ours]},
    }


def sampling_arguments(request: EngineRequest, *, own_sampler: bool = False) -> dict[str, Any]:
    """Return vLLM `SamplingParams` for a request; stop strings are ours, and so is the text.

    To vLLM, tokens that were generated before are part of the prompt: what counts tokens of the answer is less by them.
    With `own_sampler`, `engine_core.sampler` draws, else vLLM.
    """
    sampling, generated = request.sampling, len(request.generated_ids)
    arguments: dict[str, Any] = {
        "n": 1,
        "max_tokens": sampling.max_tokens - generated,
        "min_tokens": max(0, sampling.min_tokens - generated),
        "temperature": sampling.temperature,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "detokenize": False,
        "extra_args": {CREDIT: request.credit, GENERATED: generated},
    }
    if request.stream_id:
        arguments["extra_args"][CHECKPOINT] = [request.tenant_id, request.stream_id, request.ahead]
    if sampling.temperature > 0 and own_sampler:
        arguments["extra_args"] |= {SEED: sampling.seed, TOP_K: sampling.top_k, TOP_P: sampling.top_p}
    elif sampling.temperature > 0:
        arguments |= {"seed": sampling.seed, "top_k": sampling.top_k, "top_p": sampling.top_p}
    if sampling.logit_bias:
        arguments["logit_bias"] = dict(sampling.logit_bias)
    return arguments


def structured_arguments(structured: StructuredOutput) -> dict[str, Any]:
    """Return vLLM `StructuredOutputsParams` for a constraint."""
    if structured.json_schema is not None:
        return {"json": structured.json_schema}
    if structured.json_object:
        return {"json_object": True}
    if structured.regex is not None:
        return {"regex": structured.regex}
    if structured.choice:
        return {"choice": list(structured.choice)}
    return {"grammar": structured.grammar}


_NAMED_IN_REFUSALS = (
    "min_tokens", "max_tokens", "stop_token_ids", "logit_bias", "temperature", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
)  # fmt: skip


def refused_parameter(error: Exception, message: str, sampling: SamplingParams) -> str | None:
    """Return which field of the request vLLM complains of, by what it says; None where it does not say.

    vLLM's validation errors may carry the name; others begin with it. Whatever else is wrong with a constrained
    request is wrong with its constraint: grammars and schemas complain in their own words.
    """
    named = getattr(error, "parameter", None)
    if named in _NAMED_IN_REFUSALS:
        return str(named)
    words = set(re.findall(r"\w+", message))
    named = next((name for name in _NAMED_IN_REFUSALS if name in words), None)
    if named is None and sampling.structured is not None:
        return "response_format"
    return named
