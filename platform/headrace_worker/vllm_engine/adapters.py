"""LoRA adapters in vLLM's words."""

from typing import Any

from headrace_worker.engine import EngineAdapter


def lora_request(adapter: EngineAdapter) -> Any:  # noqa: ANN401  vLLM is untyped
    """Return vLLM's `LoRARequest`. Its name is part of the names of prefix-cache blocks."""
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    return LoRARequest(adapter.name, adapter.number, adapter.folder)


def max_adapters(config: Any) -> int:  # noqa: ANN401  vLLM's VllmConfig
    """Return how many adapters an engine keeps; those beyond `max_loras` wait in main memory for their turn."""
    lora = config.lora_config
    return 0 if lora is None else int(lora.max_cpu_loras or lora.max_loras)
