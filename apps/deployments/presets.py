"""Presets of engine options: they fill the form, where a person looks at them before anything is saved.

A field that a preset does not name stays as it is: the model, its precision, its prices.
"""

from typing import Any

from django.utils.translation import gettext_lazy as _

_NO_SPECULATION = {
    "speculation": "",
    "num_speculative_tokens": "",
    "prompt_lookup_min": "",
    "prompt_lookup_max": "",
    "draft_model": "",
}

PRESETS: tuple[dict[str, Any], ...] = (
    {
        "label": _("Low latency"),
        "told": _(
            "Few requests at once, small steps. Speculative decoding can make it quicker still, and costs exactness."
        ),
        "fields": {
            "max_num_seqs": 16,
            "batch_max": "",
            "max_num_batched_tokens": 2048,
            "performance_mode": "interactivity",
            "gpu_memory_utilization": 0.9,
            "kv_cache_dtype": "",
        },
    },
    {
        "label": _("Throughput"),
        "told": _("Many requests at once, large steps: the most tokens per second and GPU."),
        "fields": {
            "max_num_seqs": 256,
            "batch_max": "",
            "max_num_batched_tokens": 16384,
            "performance_mode": "throughput",
            "gpu_memory_utilization": 0.95,
            "kv_cache_dtype": "",
            **_NO_SPECULATION,
        },
    },
    {
        "label": _("Small GPU"),
        "told": _("Short contexts, FP8 in the KV cache, few requests, 1 GiB left free: for 8 to 12 GiB of GPU memory."),
        "fields": {
            "max_model_len": 4096,
            "max_num_seqs": 8,
            "batch_max": "",
            "max_num_batched_tokens": 2048,
            "performance_mode": "interactivity",
            "gpu_memory_utilization": 0.9,
            "gpu_memory_reserve_gib": 1,
            "kv_cache_dtype": "fp8",
        },
    },
)
