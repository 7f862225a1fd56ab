"""The form of a deployment: its columns, and the engine's options as fields of their own."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from apps.deployments.engine_options import OPTION_FIELDS, OptionError, options_join, options_split
from apps.deployments.enums import (
    Batching,
    EngineKind,
    ExecutorBackend,
    KvCacheDtype,
    Quantization,
    Speculation,
)
from apps.deployments.models import ModelDeployment

_BLOCK_SIZES = [("", _("vLLM's own")), *((size, str(size)) for size in (8, 16, 32, 64, 128))]


def _choice(choices: Any, label: Any, empty: Any, help_text: Any, **kwargs: Any) -> forms.TypedChoiceField:  # noqa: ANN401
    offered = choices if isinstance(choices, list) else [("", empty), *choices.choices]
    return forms.TypedChoiceField(
        label=label,
        choices=offered,
        required=False,
        empty_value=None,
        widget=UnfoldAdminSelectWidget,
        help_text=help_text,
        **kwargs,
    )


def _count(label: Any, help_text: Any, *, low: int = 1, high: int = 1 << 20) -> forms.IntegerField:  # noqa: ANN401
    return forms.IntegerField(
        label=label,
        required=False,
        min_value=low,
        max_value=high,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text=help_text,
    )


def _number(label: Any, help_text: Any, *, low: float, high: float) -> forms.FloatField:  # noqa: ANN401
    widget = UnfoldAdminDecimalFieldWidget(attrs={"step": "any"})
    return forms.FloatField(
        label=label, required=False, min_value=low, max_value=high, widget=widget, help_text=help_text
    )


class EngineArgsField(forms.JSONField):
    """JSON as people write it. Text that Python will not read is an error of theirs like any other."""

    def to_python(self, value: Any) -> Any:  # noqa: ANN401
        """Reads it."""
        try:
            return super().to_python(value)
        except (ValueError, RecursionError) as error:  # Django expects JSONDecodeError alone
            message = _("It is nested too deeply, or a number in it has thousands of digits.")
            raise ValidationError(message, code="invalid") from error

    def bound_data(self, data: Any, initial: Any) -> Any:  # noqa: ANN401
        """Reads it again for the form that comes back."""
        try:
            return super().bound_data(data, initial)
        except (ValueError, RecursionError):
            return InvalidJSONInput(data)


class DeploymentForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A deployment. Empty options are left to vLLM; what has no field here is written as JSON."""

    quantization = forms.ChoiceField(
        required=False,
        widget=UnfoldAdminSelectWidget,
        help_text=_(
            "AWQ, GPTQ, FP8 and compressed-tensors need a model that was quantised this way. “On loading” quantises any"
            " model, with bfloat16 or float16 as number format. Made for GPUs; leave it empty on CPUs."
        ),
    )
    kv_cache_dtype = _choice(
        KvCacheDtype,
        _("KV cache numbers (kv_cache_dtype)"),
        _("as the model's"),
        _("FP8 holds twice the tokens in the same memory, and answers differ a little from those without it."),
    )
    block_size = _choice(
        _BLOCK_SIZES,
        _("Block size"),
        None,
        _("Tokens in a block of the KV cache; prefixes are shared in whole blocks. On CPUs: 32 or a multiple."),
        coerce=int,
    )
    max_num_batched_tokens = _count(
        _("Tokens per step (max_num_batched_tokens)"),
        _("More: long prompts are read sooner. Fewer: answers that run beside them are disturbed less."),
    )
    performance_mode = _choice(
        Batching,
        _("Tuned for"),
        _("vLLM's own"),
        _("Which kernels and CUDA graphs vLLM prepares; on a CPU without effect."),
    )
    gpu_memory_utilization = _number(
        _("Share of GPU memory"),
        _("0 to 1, of what weights, activations and KV cache may take together. Empty: vLLM's own (0.92)."),
        low=0.01,
        high=1.0,
    )
    gpu_memory_reserve_gib = _number(
        _("Reserve (GiB per GPU)"),
        _("Stays free on each GPU for other programs: the share is lowered where it would be less."),
        low=0.1,
        high=1024.0,
    )
    tensor_parallel_size = _count(
        _("Tensor parallel"), _("GPUs that share each layer. It must divide the model's attention heads."), high=1024
    )
    pipeline_parallel_size = _count(_("Pipeline parallel"), _("Stages of layers, each on GPUs of its own."), high=1024)
    distributed_executor_backend = _choice(
        ExecutorBackend,
        _("Run by"),
        _("vLLM's own"),
        _("How several GPUs work together: processes of one machine, or Ray, also over machines."),
    )
    speculation = _choice(
        Speculation,
        _("Speculative decoding"),
        _("off"),
        _(
            "Guesses tokens ahead and checks them in one step: quicker answers at low load, fewer tokens per second at"
            " high load. It costs seeded answers their exactness; requests with min_p or logit_bias are refused."
        ),
    )
    num_speculative_tokens = _count(_("Tokens guessed at once"), _("3 to 5 are usual."), high=64)
    prompt_lookup_min = _count(_("Shortest match"), _("n-gram: tokens that must repeat, at least."), high=256)
    prompt_lookup_max = _count(_("Longest match"), _("n-gram: tokens that are compared, at most."), high=256)
    enable_lora = _choice(
        [("", _("off")), ("1", _("on"))],
        _("LoRA adapters (enable_lora)"),
        None,
        _("Lets tenants have weights of their own over the model (Models → LoRA adapters). Costs memory and speed."),
        coerce=bool,
    )
    max_loras = _count(
        _("Adapters in one batch (max_loras)"),
        _("Requests of more adapters than these wait for each other. Empty: vLLM's own (1)."),
        high=256,
    )
    max_lora_rank = _choice(
        [("", _("vLLM's own (16)")), *((rank, str(rank)) for rank in (8, 16, 32, 64, 128, 256, 320, 512))],
        _("Largest rank (max_lora_rank)"),
        None,
        _("Adapters of a larger rank are refused. Each place in a batch takes memory for it."),
        coerce=int,
    )
    draft_model = forms.CharField(
        required=False,
        max_length=500,
        widget=UnfoldAdminTextInputWidget,
        help_text=_("Hugging Face id or folder of a small model with the same tokenizer."),
    )

    class Meta:
        model = ModelDeployment
        fields: list[str] = []  # the admin's field sets say which
        field_classes = {"engine_args": EngineArgsField}
        widgets = {"engine_args": UnfoldAdminTextareaWidget(attrs={"rows": 4, "spellcheck": "false"})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Takes the stored engine arguments apart."""
        super().__init__(*args, **kwargs)
        options, rest = options_split(self.instance.engine_args or {})
        if options.get("enable_lora"):
            options["enable_lora"] = "1"
        self.initial = {**self.initial, **options, "engine_args": rest, **(kwargs.get("initial") or {})}
        if "quantization" in self.fields:
            offered = [("", _("as the model's own configuration says")), *Quantization.choices]
            stored = self.instance.quantization
            if stored and stored not in Quantization.values:
                offered.append((stored, stored))
            self.fields["quantization"].choices = offered  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        """Puts the engine arguments together."""
        values: dict[str, Any] = super().clean() or {}
        rest = values.get("engine_args")
        if not isinstance(rest, dict):  # invalid JSON, or not an object: the model's own check says so
            return values
        if values.get("engine") != EngineKind.VLLM:
            for name in OPTION_FIELDS:
                if values.get(name) not in (None, ""):
                    self.add_error(name, ValidationError(_("Only vLLM has it; empty it."), code="engine"))
            return values
        try:
            values["engine_args"] = options_join(values, rest)
        except OptionError as error:
            self.add_error(error.field, ValidationError(str(error), code="option"))
        return values
