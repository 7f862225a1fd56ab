"""`headrace_worker --check`: says whether an engine would take a deployment, without loading its model.

Reads a `DeploymentConfig` as JSON from standard input and writes an `EngineCheck` as one line to standard output.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headrace_wire.adapters import AdapterQuestion
from headrace_wire.engine_check import EngineCheck, encode_check
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from headrace_worker.adapter_files import check_adapter
from headrace_worker.config import InvalidEnvironmentError, adapter_dir, prepare_vllm_environment
from headrace_worker.engine import EngineDeadError, EngineRefusedError
from headrace_worker.simulated_config import SimulatedArgs

_NICENESS = 10
"""Streams of the same machine go first."""

_ADVICE = {
    r"Cannot find the config file for|CompressedTensorsConfig|quant_config|quantization_config": (
        "The model's files are not quantised this way. Choose a model that is (its card says so), leave quantisation"
        " empty, or take one of the kinds “on loading”."
    ),
    r"is not supported for quantization method": (
        "Set the number format to one that the message names. On a CPU leave quantisation empty."
    ),
    r"no FP8 kernels": "Leave quantisation empty on CPUs.",
    r"Unknown quantization method": "This version of vLLM does not have it; take one that the form offers.",
    r"max_num_batched_tokens .* must be greater than or equal to max_num_seqs": (
        "Raise the tokens per step, or lower the parallel requests."
    ),
    r"must be divisible by tensor parallel size": (
        "Choose a tensor parallel size that divides the model's attention heads, and raise pipeline parallel instead."
    ),
    r"No common block size": "Choose a block size that the message allows: on a CPU 32, 64 or 128.",
    r"[Ww]orld size|available GPUs|\b[Rr]ay\b": (
        "Lower tensor or pipeline parallel, or let the workers be run by Ray on machines that have it."
    ),
    r"maximum model length|max_model_len|max_position_embeddings": "Lower the context length, or leave it empty.",
    r"[Rr]epo|[Cc]an't load|couldn't connect|does not appear to have|No such file|huggingface": (
        "Check the name of the model (or of the draft model): a Hugging Face id, or a folder that this machine has."
    ),
    r"vocab|tokenizer": "The draft model must have the tokenizer of the model.",
}
"""What to do, by what vLLM says."""


def check(source: BinaryIO) -> int:
    """Judge the deployment that `source` carries and print the report; returns the exit status."""
    os.nice(_NICENESS)
    answer = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no part of the answer
    try:
        deployment = msgspec.json.decode(source.read(), type=DeploymentConfig)
    except msgspec.DecodeError as error:
        sys.stderr.write(f"headrace_worker: standard input is no deployment: {error}\n")
        return 2
    os.write(answer, encode_check(judge(deployment)))
    return 0


def check_adapter_files(source: BinaryIO) -> int:
    """Answer the `AdapterQuestion` that `source` carries with an `AdapterCheck`; returns the exit status."""
    try:
        question = msgspec.json.decode(source.read(), type=AdapterQuestion)
        root = adapter_dir()
    except (msgspec.DecodeError, InvalidEnvironmentError) as error:
        sys.stderr.write(f"headrace_worker: {error}\n")
        return 2
    os.write(1, msgspec.json.encode(check_adapter(root, question)) + b"\n")
    return 0


def judge(deployment: DeploymentConfig) -> EngineCheck:
    """Return what the deployment's engine says to it."""
    if deployment.engine is EngineKind.SIMULATED:
        return _simulated(deployment)
    with tempfile.TemporaryDirectory(prefix="headrace-check-") as folder:
        prepare_vllm_environment(error_file=Path(folder, "unused"))
        return _vllm(deployment)


def advice_for(problem: str) -> str:
    """Return what to do about a refusal; empty where its own words must do."""
    return next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, problem)), "")


def _simulated(deployment: DeploymentConfig) -> EngineCheck:
    try:
        msgspec.convert(deployment.engine_args, SimulatedArgs)
    except msgspec.ValidationError as error:
        return EngineCheck(is_accepted=False, engine="simulated", problem=str(error))
    return EngineCheck(is_accepted=True, engine="simulated")


def _vllm(deployment: DeploymentConfig) -> EngineCheck:
    from headrace_worker.vllm_engine import configuration  # noqa: PLC0415  ten seconds of imports

    engine = configuration.platform_name()
    try:
        config = configuration.vllm_config(deployment, None)
        configuration.check_attention(config)
    except (EngineRefusedError, EngineDeadError) as error:
        problem = str(error)
        return EngineCheck(is_accepted=False, engine=engine, problem=problem, advice=advice_for(problem))
    return EngineCheck(
        is_accepted=True, engine=engine, settings=_settings(config), notes=_without_effect(deployment, engine)
    )


def _settings(config: Any) -> dict[str, str]:  # noqa: ANN401  vLLM is untyped
    lora = config.lora_config
    model, cache, scheduler, parallel = (
        config.model_config,
        config.cache_config,
        config.scheduler_config,
        config.parallel_config,
    )
    found = {
        "max_model_len": model.max_model_len,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": model.quantization,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "block_size": cache.block_size,
        "kv_cache_dtype": cache.cache_dtype,
        "GPUs": parallel.world_size if parallel.world_size > 1 else None,
        "LoRA adapters": f"{lora.max_loras} at once, of rank {lora.max_lora_rank}" if lora else None,
        "speculative decoding": config.speculative_config.method if config.speculative_config else None,
    }
    return {name: str(value) for name, value in found.items() if value}


_GPU_ONLY = (
    "gpu_memory_reserve_gib",
    "distributed_executor_backend",
    "performance_mode",
    "disable_custom_all_reduce",
)


def _without_effect(deployment: DeploymentConfig, engine: str) -> list[str]:
    if not engine.endswith(" CPU"):
        return []
    idle = [name for name in _GPU_ONLY if name in deployment.engine_args]
    notes = [f"Without effect on a CPU: {', '.join(idle)}."] if idle else []
    return [
        *notes,
        "Judged on a CPU: what only a GPU's kernels or memory can refuse is seen when a worker starts there.",
    ]
