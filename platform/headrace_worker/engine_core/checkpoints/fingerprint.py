"""What the bytes of a KV block depend on, besides the tokens: a checkpoint fits only where all of this is the same."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import vllm
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf", "config.json")
_SAMPLES = 16
_SAMPLE_BYTES = 64 << 10


def fingerprint(vllm_config: Any, kv_cache_config: Any) -> str:  # noqa: ANN401  vLLM is untyped
    """Return the fingerprint of an engine's KV blocks: vLLM, model, revision, data types, block size, layers, ISA."""
    model, cache_config = vllm_config.model_config, vllm_config.cache_config
    (group,) = kv_cache_config.kv_cache_groups
    spec = group.kv_cache_spec
    parts = [
        vllm.__version__,
        _weights(str(model.model), str(model.revision), getattr(model.hf_config, "_commit_hash", None) or ""),
        str(model.dtype),
        str(model.quantization),
        str(cache_config.cache_dtype),
        str(cache_config.prefix_caching_hash_algo),
        repr(spec),
        int(spec.page_size_bytes),
        list(group.layer_names),
        str(kv_cache_config.kv_cache_layout),
        _instruction_set(spec, str(cache_config.cache_dtype)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def is_supported(vllm_config: Any, kv_cache_config: Any) -> bool:  # noqa: ANN401  vLLM is untyped
    """Say whether blocks alone are what the model remembers, all of them in this process's KV cache."""
    groups = kv_cache_config.kv_cache_groups
    if vllm_config.parallel_config.world_size != 1 or len(groups) != 1:
        return False
    spec = groups[0].kv_cache_spec
    return (
        isinstance(spec, FullAttentionSpec)
        and not getattr(spec, "sliding_window", None)
        and not getattr(spec, "attention_chunk_size", None)
        and spec.block_size == vllm_config.cache_config.block_size
        and bool(vllm_config.cache_config.enable_prefix_caching)
    )


def _instruction_set(spec: Any, cache_dtype: str) -> str:  # noqa: ANN401  vLLM is untyped
    """Return what decides the order of bytes within a block."""
    if not current_platform.is_cpu():
        return str(current_platform.get_device_name())
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa  # noqa: PLC0415  exists in CPU builds' use only

    return str(_get_attn_isa(spec.dtype, spec.block_size, spec.head_size, cache_dtype))


@cache
def _weights(model: str, revision: str, commit: str) -> str:
    """Return what tells these weights from others, also where a folder's content was replaced.

    Of a folder, samples of its files: the same on every machine that has a copy.
    """
    folder = Path(model)
    if not folder.is_dir():
        return f"{model}@{commit or revision}"
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.name.endswith(_WEIGHTS)):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        with path.open("rb") as file:
            for sample in range(_SAMPLES):
                file.seek(max(0, (size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1)))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
