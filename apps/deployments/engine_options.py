"""Engine arguments that have a field of their own in the deployment's form; the others are written as JSON beside them.

Both are stored together as the deployment's engine arguments, so that the snapshot and the audit trail know one thing.
"""

from collections.abc import Mapping
from typing import Any

ADAPTER_OPTIONS = ("enable_lora", "max_loras", "max_lora_rank")

OPTIONS = (
    "performance_mode",
    "max_num_batched_tokens",
    "block_size",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "gpu_memory_reserve_gib",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "distributed_executor_backend",
    *ADAPTER_OPTIONS,
)
"""Fields that hold an argument as it is."""

SPECULATION = "speculative_config"
NGRAM_FIELDS = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
DRAFT_FIELDS = ("num_speculative_tokens", "draft_model")
SPECULATION_FIELDS = ("speculation", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "draft_model")
"""Fields that make up `speculative_config` together."""

OPTION_FIELDS = (*OPTIONS, *SPECULATION_FIELDS)


class OptionError(ValueError):
    """A field contradicts another one; carries the field's name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def options_split(engine_args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values of the fields, and the arguments that have none."""
    options = {name: engine_args[name] for name in OPTIONS if name in engine_args}
    if isinstance(speculation := engine_args.get(SPECULATION), dict):
        options["speculation"] = speculation.get("method")
        options |= {name: speculation[name] for name in NGRAM_FIELDS if name in speculation}
        if "model" in speculation:
            options["draft_model"] = speculation["model"]
    rest = {name: value for name, value in engine_args.items() if name not in {*OPTIONS, SPECULATION}}
    return options, rest


def options_join(options: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the engine arguments of a form: those of its fields, and those written as JSON.

    Raises:
        OptionError: An argument stands in both places, or a field is missing or means nothing beside the others.
    """
    given = {name: options[name] for name in OPTIONS if options.get(name) not in (None, "")}
    for name in ADAPTER_OPTIONS[1:]:
        if name in given and not given.get(ADAPTER_OPTIONS[0]):
            raise OptionError(name, "It means nothing without LoRA adapters; empty it.")
    if speculation := _speculation(options):
        given[SPECULATION] = speculation
    for name, value in given.items():
        if name in rest and rest[name] != value:
            field = "speculation" if name == SPECULATION else name
            raise OptionError(field, f"The JSON below has another “{name}”; take it out there.")
    return {**rest, **given}


def _speculation(options: Mapping[str, Any]) -> dict[str, Any]:
    method = options.get("speculation") or ""
    wanted = {"": (), "ngram": NGRAM_FIELDS, "draft_model": DRAFT_FIELDS}[method]
    for name in SPECULATION_FIELDS[1:]:
        is_given = options.get(name) not in (None, "")
        if name in wanted and not is_given:
            raise OptionError(name, "This way of guessing needs it.")
        if is_given and name not in wanted:
            raise OptionError(name, "It means nothing without the way of guessing that uses it; empty it.")
    if not method:
        return {}
    renamed = {"draft_model": "model"}
    return {"method": method, **{renamed.get(name, name): options[name] for name in wanted}}
