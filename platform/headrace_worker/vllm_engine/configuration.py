"""A deployment as vLLM's own configuration, with our plug-ins named in it."""

from typing import Any

from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.engine import EngineDeadError, EngineRefusedError
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.vllm_arguments import engine_arguments
from headrace_worker.vllm_engine.refusals import message_of

SAMPLER = "headrace_worker.engine_core.sampler:PositionalSampler"


def vllm_config(deployment: DeploymentConfig, checkpoints: CheckpointSettings | None) -> Any:  # noqa: ANN401  untyped
    """Return vLLM's `VllmConfig`.

    Raises:
        EngineRefusedError: the deployment's arguments are not acceptable.
        EngineDeadError: anything else, which may pass: a download that failed, a full disk.
    """
    from vllm.config import KVTransferConfig  # noqa: PLC0415
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415

    arguments = engine_arguments(deployment, on_cpu=current_platform.is_cpu(), checkpoints=checkpoints)
    try:
        if "kv_transfer_config" in arguments:
            arguments["kv_transfer_config"] = KVTransferConfig(**arguments["kv_transfer_config"])
        return AsyncEngineArgs(**arguments).create_engine_config()
    except (ValueError, TypeError, NotImplementedError) as error:
        raise EngineRefusedError(message_of(error)) from error
    except Exception as error:
        raise EngineDeadError(message_of(error)) from error


def plug_in(config: Any) -> bool:  # noqa: ANN401  vLLM's VllmConfig
    """Name our scheduler and our sampler in it; returns whether the sampler can be had."""
    scheduler = "HeadraceAsyncScheduler" if config.scheduler_config.async_scheduling else "HeadraceScheduler"
    config.scheduler_config.scheduler_cls = f"headrace_worker.engine_core.scheduler.{scheduler}"
    # vLLM's second model runner draws by seed and position itself, and speculative decoding takes no processors.
    has_own_sampler = not config.use_v2_model_runner and config.speculative_config is None
    if has_own_sampler:
        config.model_config.logits_processors = [SAMPLER]
    return has_own_sampler
