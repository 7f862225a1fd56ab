"""Choices of this app's models."""

from django.db import models

from headrace_wire import batch, breakers, fleet, snapshot


class EngineKind(models.TextChoices):
    """What generates the tokens."""

    VLLM = snapshot.EngineKind.VLLM, "vLLM"
    SIMULATED = snapshot.EngineKind.SIMULATED, "Simulated"


class BatchControl(models.TextChoices):
    """What moves the batch of a worker."""

    OFF = batch.BatchControl.OFF, "Off: always the largest"
    SHADOW = batch.BatchControl.SHADOW, "Shadow: only show what both rules would do"
    CLASSIC = batch.BatchControl.CLASSIC, "By load: over 80 % halves it, below 30 % doubles it"
    OBJECTIVES = batch.BatchControl.OBJECTIVES, "By the goals below"


class BreakerState(models.TextChoices):
    """Whether requests for a deployment are admitted."""

    CLOSED = breakers.BreakerState.CLOSED, "Closed"
    OPEN = breakers.BreakerState.OPEN, "Open"
    HALF_OPEN = breakers.BreakerState.HALF_OPEN, "Half open"


class BreakerReason(models.TextChoices):
    """Why they are not."""

    ERRORS = breakers.OpenReason.ERRORS, "Workers failed too many answers"
    ABSENT = breakers.OpenReason.ABSENT, "No worker was there"
    HAND = breakers.OpenReason.HAND, "Opened by hand"


class Dtype(models.TextChoices):
    """Numbers the weights and activations are kept in."""

    AUTO = "auto", "Automatic"
    FLOAT32 = "float32", "float32 (use it on CPUs)"
    FLOAT16 = "float16", "float16"
    BFLOAT16 = "bfloat16", "bfloat16"


class Quantization(models.TextChoices):
    """Small weights, by vLLM's names. Any other name that vLLM knows is kept where it is stored already."""

    AWQ = "awq", "AWQ"
    GPTQ = "gptq", "GPTQ"
    FP8 = "fp8", "FP8"
    COMPRESSED_TENSORS = "compressed-tensors", "compressed-tensors (INT8, FP8, INT4)"
    MODELOPT = "modelopt", "ModelOpt (FP8)"
    FP8_ON_LOADING = "fp8_per_tensor", "FP8 on loading"
    FP8_BLOCKS_ON_LOADING = "fp8_per_block", "FP8 by blocks, on loading"
    INT8_ON_LOADING = "int8_per_channel_weight_only", "INT8 weights, on loading"


class KvCacheDtype(models.TextChoices):
    """Numbers the KV cache is kept in, by vLLM's names."""

    FP8 = "fp8", "FP8"
    FP8_E4M3 = "fp8_e4m3", "FP8 (E4M3)"
    FP8_E5M2 = "fp8_e5m2", "FP8 (E5M2)"
    AUTO = "auto", "auto"


class Batching(models.TextChoices):
    """vLLM's `performance_mode`."""

    BALANCED = "balanced", "balance"
    INTERACTIVITY = "interactivity", "low latency"
    THROUGHPUT = "throughput", "throughput"


class ExecutorBackend(models.TextChoices):
    """Who runs the processes of one engine on several GPUs."""

    MP = "mp", "processes (mp)"
    RAY = "ray", "Ray"


class Speculation(models.TextChoices):
    """How tokens are guessed, by vLLM's names."""

    NGRAM = "ngram", "n-gram: what followed the same words before"
    DRAFT_MODEL = "draft_model", "draft model"


class WorkerState(models.TextChoices):
    """What a worker said last; `ended` once it took itself out, `lost` where it said nothing for its lease's length."""

    LOADING = fleet.WorkerState.LOADING, "Loading"
    READY = fleet.WorkerState.READY, "Ready"
    DRAINING = fleet.WorkerState.DRAINING, "Draining"
    BROKEN = fleet.WorkerState.BROKEN, "Broken"
    SLEEPING = fleet.WorkerState.SLEEPING, "Sleeping"
    ENDED = "ended", "Ended"
    LOST = "lost", "Lost"
