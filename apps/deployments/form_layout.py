"""Where the fields of a deployment's form stand."""

from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from apps.deployments.engine_options import OPTION_FIELDS
from apps.deployments.models import ModelDeployment
from apps.deployments.option_notes import notes_of
from apps.deployments.presets import PRESETS

Fieldsets = list[tuple[Any, dict[str, Any]]]

_FIELDSETS: Fieldsets = [
    (None, {"fields": ["name", "model", "is_active"]}),
    (
        _("Engine"),
        {
            "fields": [
                "engine",
                ("dtype", "quantization"),
                ("max_model_len", "default_max_tokens"),
                ("restarts_workers", "options_told"),
            ],
            "description": _(
                "Workers that run already take the engine's options over when they are restarted: one after another,"
                " by the button above or by themselves."
            ),
        },
    ),
    (
        _("Batching"),
        {
            "fields": [
                ("max_num_seqs", "max_num_batched_tokens"),
                ("batch_min", "batch_max"),
                ("performance_mode", "block_size"),
                "batch_control",
                ("batch_tpot_goal_seconds", "batch_ttft_goal_seconds"),
                "prefills_drafts",
            ]
        },
    ),
    (
        _("Memory and GPUs"),
        {
            "fields": [
                ("gpu_memory_utilization", "gpu_memory_reserve_gib"),
                "kv_cache_dtype",
                ("tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend"),
            ],
        },
    ),
    (
        _("Speculative decoding"),
        {
            "fields": [
                "speculation",
                ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"),
                "draft_model",
            ],
        },
    ),
    (_("LoRA adapters"), {"fields": [("enable_lora", "max_loras", "max_lora_rank")]}),
    (_("Other engine arguments"), {"fields": ["engine_args"]}),
    (
        _("Prices"),
        {
            "fields": [("prompt_price", "cached_price", "completion_price")],
            "description": _("Money per million tokens, for budgets and the usage ledger. Zero: free."),
        },
    ),
    (
        _("Your costs"),
        {
            "fields": [("worker_hour_cost", "kwh_cost")],
            "description": _("What it costs you to run it, for the page of costs; nobody is billed by it."),
        },
    ),
    (_("Access"), {"fields": ["is_restricted", "visible_tenants"]}),
    (
        _("Waiting and deadlines"),
        {
            "fields": [
                ("queue_limit", "queue_timeout_seconds"),
                ("ttft_timeout_seconds", "inter_token_timeout_seconds"),
                ("warm_up_seconds", "sleep_after_seconds"),
                "preload_priority",
            ]
        },
    ),
    (
        _("Circuit breaker"),
        {
            "fields": [
                ("is_breaker_on", "fallback"),
                ("breaker_error_share", "breaker_min_ends", "breaker_window_seconds"),
                ("breaker_absent_seconds", "breaker_open_seconds", "breaker_probes"),
                "breaker_told",
            ],
        },
    ),
    (_("Trouble"), {"fields": ["last_error_text", "last_error_at"]}),
    (_("Record"), {"fields": [("id", "created_at", "updated_at")], "classes": ["collapse"]}),
]

_LAST_OF_ENGINE = "engine_args"
"""Presets and the check follow the field set with this one."""


def fieldsets_for(deployment: ModelDeployment | None, *, may_write: bool) -> Fieldsets:
    """Returns the field sets; for people who only look, without those that are no column of their own."""
    found: Fieldsets = []
    for title, options in _FIELDSETS:
        fields = options["fields"] if may_write else _columns(options["fields"])
        if fields:
            found.append((title, {**options, "fields": fields}))
        if may_write and _LAST_OF_ENGINE in fields:
            found.append((_("Presets and check"), {"fields": [], "description": _panel(deployment)}))
    return found


def _columns(fields: list[Any]) -> list[Any]:
    lines = [line if isinstance(line, tuple) else (line,) for line in fields]
    kept = [tuple(name for name in line if name not in OPTION_FIELDS) for line in lines]
    return [line for line in kept if line]


def _panel(deployment: ModelDeployment | None) -> SafeString:
    context = {
        "original": deployment,
        "presets": PRESETS,
        "preset_fields": [preset["fields"] for preset in PRESETS],
        "option_notes": notes_of(deployment) if deployment is not None else [],
    }
    return render_to_string("deployments/admin/options.html", context)
