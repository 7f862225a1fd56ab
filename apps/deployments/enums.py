"""Choices of this app's models."""

from django.db import models

from headrace_wire import fleet, snapshot


class EngineKind(models.TextChoices):
    """What generates the tokens."""

    VLLM = snapshot.EngineKind.VLLM, "vLLM"
    SIMULATED = snapshot.EngineKind.SIMULATED, "Simulated"


class Dtype(models.TextChoices):
    """Numbers the weights and activations are kept in."""

    AUTO = "auto", "Automatic"
    FLOAT32 = "float32", "float32 (use it on CPUs)"
    FLOAT16 = "float16", "float16"
    BFLOAT16 = "bfloat16", "bfloat16"


class WorkerState(models.TextChoices):
    """What a worker said last; `ended` once it took itself out, `lost` where it said nothing for its lease's length."""

    LOADING = fleet.WorkerState.LOADING, "Loading"
    READY = fleet.WorkerState.READY, "Ready"
    DRAINING = fleet.WorkerState.DRAINING, "Draining"
    BROKEN = fleet.WorkerState.BROKEN, "Broken"
    ENDED = "ended", "Ended"
    LOST = "lost", "Lost"
