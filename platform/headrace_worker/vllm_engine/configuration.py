"""A deployment as vLLM's own configuration, with our plug-ins named in it."""

from typing import Any

from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.engine import EngineDeadError, EngineRefusedError
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.vllm_arguments import RESERVE, engine_arguments
from headrace_worker.vllm_engine.refusals import message_of

SAMPLER = "headrace_worker.engine_core.sampler:PositionalSampler"

_SPREADING = ("tensor_parallel_size", "pipeline_parallel_size")


def platform_name() -> str:
    """Return which vLLM this is, on what kind of device."""
    import vllm  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415

    return f"vLLM {vllm.__version__} on {current_platform.device_type.upper()}"


def vllm_config(deployment: DeploymentConfig, checkpoints: CheckpointSettings | None) -> Any:  # noqa: ANN401  untyped
    """Return vLLM's `VllmConfig`.

    Raises:
        EngineRefusedError: the deployment's arguments are not acceptable.
        EngineDeadError: anything else, which may pass: a download that failed, a full disk.
    """
    from vllm.config import KVTransferConfig  # noqa: PLC0415
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415

    on_cpu = current_platform.is_cpu()
    if on_cpu and any(deployment.engine_args.get(name, 1) > 1 for name in _SPREADING):
        raise EngineRefusedError("On a CPU an engine is one process: leave tensor and pipeline parallel at 1.")
    device_bytes = None if on_cpu or RESERVE not in deployment.engine_args else _device_bytes(current_platform)
    arguments = engine_arguments(deployment, on_cpu=on_cpu, checkpoints=checkpoints, device_bytes=device_bytes)
    try:
        if "kv_transfer_config" in arguments:
            arguments["kv_transfer_config"] = KVTransferConfig(**arguments["kv_transfer_config"])
        config = AsyncEngineArgs(**arguments).create_engine_config()
    except (ValueError, TypeError, NotImplementedError) as error:
        raise EngineRefusedError(message_of(error)) from error
    except Exception as error:
        raise EngineDeadError(message_of(error)) from error
    if on_cpu and _is_made_fp8(config.model_config):
        # vLLM finds out at the first step, in words that look like a fault that could pass
        raise EngineRefusedError("vLLM has no FP8 kernels for CPUs.")
    return config


def _is_made_fp8(model: Any) -> bool:  # noqa: ANN401  vLLM's ModelConfig
    is_quantised_already = getattr(model.hf_config, "quantization_config", None) is not None
    return str(model.quantization).startswith("fp8") and not is_quantised_already


def check_attention(config: Any) -> None:  # noqa: ANN401  vLLM's VllmConfig
    """Ask the attention backend that the model would get whether it takes the KV cache as it is configured.

    vLLM itself asks when the model is there. Of other than plain attention this knows nothing, and passes it.

    Raises:
        EngineRefusedError: it does not.
    """
    from vllm.config import set_current_vllm_config  # noqa: PLC0415
    from vllm.v1.attention.selector import get_attn_backend  # noqa: PLC0415
    from vllm.v1.worker.utils import select_common_block_size  # noqa: PLC0415

    model, cache = config.model_config, config.cache_config
    if model.use_mla or model.is_attention_free:
        return
    try:
        with set_current_vllm_config(config):
            backend = get_attn_backend(model.get_head_size(), model.dtype, cache.cache_dtype)
        select_common_block_size(cache.block_size, [backend])
    except (ValueError, NotImplementedError) as error:
        raise EngineRefusedError(message_of(error)) from error


def _device_bytes(platform: Any) -> int:  # noqa: ANN401  vLLM's Platform
    return int(platform.get_device_total_memory())


def plug_in(config: Any) -> bool:  # noqa: ANN401  vLLM's VllmConfig
    """Name our scheduler and our sampler in it; returns whether the sampler can be had."""
    scheduler = "HeadraceAsyncScheduler" if config.scheduler_config.async_scheduling else "HeadraceScheduler"
    config.scheduler_config.scheduler_cls = f"headrace_worker.engine_core.scheduler.{scheduler}"
    # vLLM's second model runner draws by seed and position itself, and speculative decoding takes no processors.
    has_own_sampler = not config.use_v2_model_runner and config.speculative_config is None
    if has_own_sampler:
        config.model_config.logits_processors = [SAMPLER]
    return has_own_sampler
