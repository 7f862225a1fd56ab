"""What a worker says of itself, and of the model that it serves."""

from enum import StrEnum

from msgspec import Struct, field

from headrace_wire.adapters import AdapterReport
from headrace_wire.batch import BatchReport
from headrace_wire.messages import ChatTurn


class WorkerState(StrEnum):
    """`loading` until a warm generation was seen; `broken` keeps the process up so that the reason can be read."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    BROKEN = "broken"
    SLEEPING = "sleeping"
    """Its engine was ended because nobody used it, and is started again for the next request."""


class GpuReading(Struct, frozen=True, omit_defaults=True):
    """What NVML says of the GPUs that a worker may use: sums of bytes and watts, means of the rest.

    None is what a GPU does not measure: a slice of one (MIG), for instance, knows its memory and not its use.
    """

    utilization: float | None = None
    """Share of the time in which a kernel ran, 0 to 1."""
    bandwidth: float | None = None
    """Share of the time in which memory was read or written, 0 to 1."""
    memory_bytes: int = 0
    """In use, by whomever."""
    clock_mhz: float | None = None
    power_watts: float | None = None
    memory_total_bytes: int = 0
    """0 where it was not told."""

    @property
    def memory_usage(self) -> float | None:
        """Share of the memory in use, 0 to 1."""
        return self.memory_bytes / self.memory_total_bytes if self.memory_total_bytes else None


class WorkerInfo(Struct, frozen=True, omit_defaults=True):
    """Registration of one worker incarnation, rewritten by each renew (1 s)."""

    incarnation: str
    deployment: str
    engine: str
    """`vllm` or `simulated`; the second is named wherever a model is listed."""
    state: WorkerState
    host: str
    pid: int
    started_at: float
    """Unix seconds, UTC."""
    model: str = ""
    fingerprint: str = ""
    max_model_len: int = 0
    max_num_seqs: int = 0
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    num_requests_held: int = 0
    """Out of credit: their readers do not come on."""
    num_requests_spilled: int = 0
    """Those of them that have lost their KV cache to others."""
    kv_cache_usage: float = 0.0
    tokens_generated: int = 0
    cold_start_seconds: float = 0.0
    last_error: str = ""
    """Why the engine could not start, in its own words."""
    config_version: int = 0
    cache_tokens: int = 0
    """What its engine's prefix cache holds; 0 where it has none."""
    memory_usage: float = 0.0
    """Share in use of its machine's or control group's memory, whichever is fuller; 0 where that was not read."""
    options: str = ""
    """Fingerprint of the engine options that it runs (`engine_options`)."""
    adapters: tuple[AdapterReport, ...] = ()
    """LoRA adapters that it was told of."""
    num_streams: int = 0
    """Streams that it works on, held ones included: what is left of a drain."""
    drain_reason: str = ""
    drain_until: float = 0.0
    """While draining: when what is left is handed over, Unix seconds, UTC."""
    is_leaving: bool = False
    """It ends when it is drained."""
    prompt_tokens: int = 0
    """Prompts of streams that have ended here, since it started."""
    cached_tokens: int = 0
    """Those of them that its prefix cache had."""
    rss_bytes: int = 0
    """Memory of the worker and its engine's processes; 0 where that was not read yet."""
    gpu: GpuReading | None = None
    batch: BatchReport | None = None
    engine_failures: int = 0
    """Engines that ended against its will within the time that counts for a quarantine."""
    quarantined_at: float = 0.0
    """Where it is `broken` because these were too many: since when, Unix seconds, UTC. A `Resume` has it try again."""
    preemptions: int = 0
    """Running requests that lost their KV cache to others and were computed again, since it started."""


class GatewayInfo(Struct, frozen=True, omit_defaults=True):
    """What one gateway incarnation says of itself, rewritten each second or so."""

    incarnation: str
    state: WorkerState
    """`ready` or `draining`."""
    host: str
    pid: int
    started_at: float
    """Unix seconds, UTC."""
    streams: int = 0
    """Streams that somebody reads through it: what is left of a drain."""
    connections: int = 0
    websockets: int = 0
    readers: dict[str, int] = field(default_factory=dict)
    """How many read a stream through it, by stream: only where that is not one. 0 while the last one may come back."""


class TemplateProbe(Struct, frozen=True):
    """A conversation and the ids that the worker's own renderer gave; a gateway whose ids differ does not render."""

    conversation: tuple[ChatTurn, ...]
    prompt_ids: tuple[int, ...]


class ModelAssets(Struct, frozen=True, omit_defaults=True):
    """What a gateway needs to turn a conversation into prompt ids."""

    fingerprint: str
    tokenizer_json: bytes
    chat_template: str
    special_tokens: dict[str, str] = field(default_factory=dict)
    """Names that templates use (`bos_token`, `eos_token`, ...) to their text."""
    probes: tuple[TemplateProbe, ...] = ()
    max_model_len: int = 0

    @property
    def may_suffice(self) -> bool:
        """Whether gateways may come to make the ids by it; where they cannot, or make others, workers do."""
        return bool(self.tokenizer_json and self.chat_template and self.probes)
