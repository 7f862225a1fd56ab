"""Messages between processes. Tagged, frozen structs; array-like where they pass per token.

Array-like structs grow at their end only, object-like ones by fields with defaults: unknown fields are ignored, so that
two versions run side by side in a rolling deploy.
"""

from enum import StrEnum

from msgspec import Struct, field

from headrace_wire.adapters import AdapterUse
from headrace_wire.guard_policy import GuardTerms


class StreamState(StrEnum):
    """Where a stream is. The last four are terminal."""

    QUEUED = "queued"
    RUNNING = "running"
    HELD = "held"
    SUSPENDED = "suspended"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REPLACED = "replaced"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more will be written to the stream's log."""
        return self in _TERMINAL


_TERMINAL = frozenset({StreamState.FINISHED, StreamState.FAILED, StreamState.CANCELLED, StreamState.REPLACED})


class FinishReason(StrEnum):
    """Why generation ended, in the field's words (STYLE, Words)."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    ABORT = "abort"
    ERROR = "error"


# ---- the request, as the worker gets it


class Inexact(StrEnum):
    """What keeps an answer from being continued token for token by another engine (`continuation`)."""

    PENALTIES = "penalties"
    """They count what their own engine has generated."""
    PRECISION = "precision"
    """The engine's numbers depend on what is computed together."""
    SAMPLING = "sampling"
    """The engine does not draw by seed and position."""


class StructuredOutput(Struct, frozen=True, omit_defaults=True):
    """A constraint on the text; exactly one field is set."""

    json_schema: str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] = ()
    grammar: str | None = None


class SamplingParams(Struct, frozen=True, omit_defaults=True):
    """Allow-listed sampling fields; everything else that an engine takes is set by the server."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    """Keep the stop string in the text."""
    seed: int = 0
    """Always explicit: drawn by the gateway where the client named none, so that any worker can go on."""
    ignore_eos: bool = False
    logit_bias: dict[int, float] = field(default_factory=dict)
    structured: StructuredOutput | None = None


class ChatTurn(Struct, frozen=True):
    """One message of a conversation, already reduced to text."""

    role: str
    content: str


class PromptCacheUse(Struct, frozen=True, array_like=True):
    """The prompt cache that a request begins with."""

    cache_id: str
    tokens: int
    """Length of its prefix; 0 where that is not known."""


class GenerateRequest(Struct, frozen=True, omit_defaults=True):
    """Everything a worker needs to serve one stream; it looks nothing up elsewhere.

    Exactly one of `prompt_ids` and `conversation` is set: ids where the gateway renders, the conversation where the
    deployment renders in the worker (DESIGN 4.2).
    """

    stream_id: str
    tenant_id: str
    deployment: str
    sampling: SamplingParams
    cache_salt: str
    """HMAC of the tenant under the server's secret; partitions the engine's prefix cache."""
    prompt_ids: bytes = b""
    """Little-endian uint32 each."""
    conversation: tuple[ChatTurn, ...] = ()
    raw_prompt: str = ""
    """Text of a completion request that the worker tokenises itself."""
    window: int = 0
    """Token credit that the stream starts with: tokens that may be generated beyond the acknowledged ones; 0 = no
    limit.
    """
    continue_inexactly: tuple[str, ...] = ()
    """For which reasons (`Inexact`) it may go on though not exactly as it would have; for others it fails."""
    log_ttl_seconds: int = 3600
    can_return: bool = True
    """Whether its client has means to come for it again; a plain request has not."""
    ttft_timeout_seconds: float = 120.0
    inter_token_timeout_seconds: float = 60.0
    guard: GuardTerms | None = None
    """Guardrails that apply, possibly none. A request that does not say is refused by the worker."""
    prompt_cache: PromptCacheUse | None = None
    adapter: AdapterUse | None = None
    """LoRA weights over the model; always the server's word, as no field of a caller leads here."""
    traceparent: str = ""
    """The gateway's span (W3C Trace Context); empty where nobody collects spans."""


# ---- the token log


class Usage(Struct, frozen=True, array_like=True):
    """Tokens counted by the engine's owner, never by the client."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timings(Struct, frozen=True, array_like=True):
    """Durations in seconds, each measured within one process (definitions in `timing`)."""

    queue_time: float = 0.0
    prefill_time: float = 0.0
    decode_time: float = 0.0
    guard_time: float = 0.0


class StreamError(Struct, frozen=True, array_like=True):
    """A failure as logged: code of the error tree and a message that a client may read."""

    code: str
    message: str
    param: str | None = None
    """The request's field that is wrong."""
    retry_after_seconds: float | None = None


class Replacement(Struct, frozen=True, array_like=True):
    """What a guardrail put in the place of an answer, or of the rest of it."""

    text: str
    retract_from: int | None = None
    """Everything after this position is void, where the reader may have had some of it (`stream_first`)."""
    keep_characters: int = 0
    """Code points of the answer's text that stay, where something is retracted."""

    def applied_to(self, text: str) -> str:
        """Return what an answer becomes by it."""
        return (text if self.retract_from is None else text[: self.keep_characters]) + self.text


class LogEntry(Struct, frozen=True, array_like=True):
    """Base of what stands in a token log. The entry's id is `<epoch>-<seq>`."""

    stream_id: str
    epoch: int
    """Milliseconds of Redis time at the claim, or one more than the epoch before, whichever is greater."""
    seq: int
    """Position of the last token that this entry covers; 0 before the first token."""


class Opened(LogEntry, frozen=True, array_like=True, tag="o"):
    """The log exists; written at admission."""


class Started(LogEntry, frozen=True, array_like=True, tag="s"):
    """An owner took the stream (fence entry): it writes from `seq` + 1 under `epoch`, nobody else does."""

    owner: str
    attempt: int
    queue_time: float = 0.0
    is_exact: bool = True
    """What it writes equals what any other owner writes at these positions."""


class Delta(LogEntry, frozen=True, array_like=True, tag="d", gc=False):
    """Text of the tokens `seq - tokens + 1 .. seq`. Text may be empty: a character can need several tokens."""

    tokens: int
    text: str


class Ended(LogEntry, frozen=True, array_like=True, tag="e"):
    """The terminal event: `seq` is the last token's position + 1, nothing follows."""

    state: StreamState
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    error: StreamError | None = None
    replacement: Replacement | None = None
    """Of a stream that was `replaced`: retract, then this text, then the end, all in one entry."""


AnyLogEntry = Opened | Started | Delta | Ended


# ---- control: what a worker is told


class Cancel(Struct, frozen=True, array_like=True, tag="cancel"):
    """Stop this stream; also state on its record, which every renew checks."""

    stream_id: str
    reason: str


class Credit(Struct, frozen=True, array_like=True, tag="credit"):
    """The stream may generate up to this position (absolute, so a repeated or reordered message does no harm)."""

    stream_id: str
    up_to: int


class WarmUp(Struct, frozen=True, array_like=True, tag="warm"):
    """Run dummy inference if idle."""

    if_idle_seconds: float = 0.0
    """For how long nothing must have been generated."""


class PrefillPurpose(StrEnum):
    """What a prefix is computed for."""

    DRAFT = "draft"
    """A prompt that a user is still typing."""
    PROMPT_CACHE = "prompt_cache"
    """A pinned prompt cache."""


class Prefill(Struct, frozen=True, array_like=True, tag="prefill"):
    """Compute a prefix into the engine's cache while nobody else needs the engine.

    Nothing of it is generated for anybody, logged or billed; a worker that has no time for it drops it.
    """

    prefill_id: str
    tenant_id: str
    cache_salt: str
    """As in `GenerateRequest`: only this tenant's requests find the prefix."""
    prompt_ids: bytes
    """Little-endian uint32 each; whole blocks."""
    expires_at_ms: int
    """Unix milliseconds; it is not begun after that."""
    purpose: PrefillPurpose = PrefillPurpose.DRAFT


class CancelPrefill(Struct, frozen=True, array_like=True, tag="cancel_prefill"):
    """Stop a prefill: the user went on typing, or sent. What it computed so far stays in the cache."""

    prefill_id: str


class Drain(Struct, frozen=True, array_like=True, tag="drain"):
    """Claim nothing more; what runs may finish for so long, then it is handed over. The newest order counts."""

    reason: str
    """For the log and the fleet's pages; not for clients."""
    deadline_seconds: float
    leave: bool = False
    """End the process then, with exit status 0; else stay registered as draining until `Resume`."""
    is_restart: bool = False
    """With `leave`: end with `draining.RESTART_STATUS`, for a fresh process to be started in its place."""


class Resume(Struct, frozen=True, array_like=True, tag="resume"):
    """Take streams again after a `Drain` that did not end the process; start an engine that sleeps, or was given up."""


class Migrate(Struct, frozen=True, array_like=True, tag="migrate"):
    """Give this stream to another worker, which continues it exactly; one that cannot be so continued stays."""

    stream_id: str
    reason: str


ControlMessage = Cancel | Credit | WarmUp | Prefill | CancelPrefill | Drain | Resume | Migrate
