"""What a combination of engine options costs, in words for the person at the form. Refuses nothing."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from apps.deployments.enums import EngineKind, Quantization
from apps.deployments.models import ModelDeployment

_ON_LOADING = {
    Quantization.FP8_ON_LOADING,
    Quantization.FP8_BLOCKS_ON_LOADING,
    Quantization.INT8_ON_LOADING,
}


def notes_of(deployment: ModelDeployment) -> list[str]:
    """Returns a sentence for each loss and each thing to know of a deployment, stored or not."""
    if deployment.engine != EngineKind.VLLM:
        return []
    engine_args, quantization, dtype = deployment.engine_args, deployment.quantization, deployment.dtype
    notes = []
    if "speculative_config" in engine_args:
        notes.append(_(
            "Speculative decoding: answers at temperature 0 stay as they are. With a temperature, a seed gives the same"
            " answer only on the same engine and undisturbed; such an answer that loses its engine goes on inexactly,"
            " or fails where the tenant forbids that. Requests with min_p or logit_bias are refused."
        ))  # fmt: skip
    if quantization in _ON_LOADING and dtype not in {"bfloat16", "float16"}:
        notes.append(_("Quantising on loading needs bfloat16 or float16 as number format."))
    if quantization or str(engine_args.get("kv_cache_dtype", "auto")).startswith("fp8"):
        notes.append(_(
            "Smaller numbers: answers differ from those of the full model, and the last digits depend on what is"
            " computed together. An answer that loses its engine goes on inexactly, or fails where the tenant forbids"
            " that."
        ))  # fmt: skip
    if engine_args.get("enable_lora"):
        notes.append(_(
            "LoRA adapters: each place in a batch takes memory for matrices of the largest rank in every layer, used or"
            " not, and all requests are a little slower. Requests of more adapters than there are places wait for each"
            " other."
        ))  # fmt: skip
    if engine_args.get("enable_prefix_caching") is False:
        notes.append(_("No prefix cache: prompts, pinned prefixes and drafts are computed anew for each request."))
    return notes + _notes_of_devices(engine_args)


def _notes_of_devices(engine_args: Mapping[str, Any]) -> list[str]:
    notes = []
    parallel = engine_args.get("tensor_parallel_size", 1) * engine_args.get("pipeline_parallel_size", 1)
    if parallel > 1:
        notes.append(
            _("Each worker needs %d GPUs; with Ray they may stand in several machines.") % parallel
            if engine_args.get("distributed_executor_backend") == "ray"
            else _("Each worker needs %d GPUs of one machine.") % parallel
        )
    if "kv_cache_memory_bytes" in engine_args and {"gpu_memory_utilization", "gpu_memory_reserve_gib"} & set(
        engine_args
    ):
        notes.append(_("kv_cache_memory_bytes sets the KV cache by itself: the share and the reserve have no effect."))
    return notes
