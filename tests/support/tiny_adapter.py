"""A random LoRA adapter for the tiny model, strong enough that greedy answers differ. Nothing but numpy makes it."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from headrace_wire.adapters import AdapterUse
from headrace_worker.adapter_files import revision_of

_MODULES = {"self_attn.q_proj": (128, 128), "self_attn.v_proj": (128, 64), "mlp.down_proj": (256, 128)}
"""Inputs and outputs of what it changes in each of the two layers."""


def tiny_adapter(folder: Path, *, seed: int = 1, rank: int = 8, base: str = "tiny-llama") -> Path:
    """Writes an adapter into `folder` as PEFT would; the same seed gives the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(seed)
    tensors = {}
    for layer in range(2):
        for module, (inputs, outputs) in _MODULES.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = draws.normal(0, 0.3, (rank, inputs)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = draws.normal(0, 0.3, (outputs, rank)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({module.rpartition(".")[2] for module in _MODULES}),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def adapter_use(root: Path, name: str) -> AdapterUse:
    """Returns an adapter of `acme` as it is now, as a request carries it after a check."""
    return AdapterUse(name, name, f"acme/{name}", revision_of(root / "acme" / name))
