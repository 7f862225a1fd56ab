"""The configuration snapshot: what gateways know of tenants, keys, deployments and quotas without a database.

The control plane publishes a whole snapshot after every committed change (`apps.tenants.snapshots`); gateways keep the
newest one in memory and go on with it while the database is down.

Redis layout (keys in `redis_keys`), all under one hash tag:

* version counter, string: the last version handed out. A publisher takes a version *before* it reads the database, so
  that of two publishers the one that read later never has the lower version. Versions follow the rule of stream epochs,
  `max(previous + 1, Redis TIME in ms)`: they stay increasing when a restarted Redis lost its last second.
* snapshot, hash: `version` (decimal) and `data` (msgpack of `ConfigSnapshot`). Stored only over an older version, by
  `lua/snapshot_store.lua`, which also publishes the version on the channel. A gateway that polls reads `version` alone.
* channel, pub/sub: the decimal version as a hint; the hash is the truth and is re-read every second.

The sections of one snapshot are read one after another, not in one database snapshot: a key may name a tenant or a
deployment that is not there yet. Readers treat that as "unknown"; the change that caused it publishes its own, newer
snapshot.
"""

from enum import StrEnum
from typing import Any

import msgspec

from headrace_wire.adapters import SEPARATOR, AdapterConfig, AdapterUse
from headrace_wire.batch import BatchControl
from headrace_wire.breakers import BreakerTerms
from headrace_wire.guard_policy import ExcerptRetention, GuardAttachment
from headrace_wire.messages import Inexact
from headrace_wire.prompt_caches import PromptCacheConfig
from headrace_wire.response_cache_terms import ResponseCacheTerms


class DetachedPolicy(StrEnum):
    """What happens to a stream that nobody reads any more."""

    FINISH = "finish"
    """Generate to the end; the log keeps the answer."""
    CONTINUE = "continue"
    """Generate `detached_tokens` more, then suspend."""
    ABORT = "abort"
    """Abort after `detached_grace_seconds`."""


class EngineKind(StrEnum):
    """The engines a worker can host."""

    VLLM = "vllm"
    SIMULATED = "simulated"


class QuotaScope(StrEnum):
    """Whom a quota limits."""

    GLOBAL = "global"
    DEPLOYMENT = "deployment"
    TENANT = "tenant"
    MEMBER = "member"
    API_KEY = "api_key"


class BudgetDuration(StrEnum):
    """The calendar period of a budget, in the tenant's time zone."""

    HOUR = "1h"
    DAY = "1d"
    WEEK = "1w"
    MONTH = "1mo"


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant. Ids are UUIDs as 32 hex digits, here and in every struct below."""

    id: str
    slug: str
    name: str = ""
    active: bool = True
    time_zone: str = "UTC"
    stream_window: int = 256
    """Tokens the engine may be ahead of the slowest bound in DESIGN 3.4 (`generated - held_back - acknowledged`)."""
    max_connections: int = 1024
    """WebSockets and requests that its callers may have open at one gateway."""
    detached_policy: DetachedPolicy = DetachedPolicy.FINISH
    detached_tokens: int = 256
    """Tokens generated without a viewer before `continue` suspends."""
    detached_grace_seconds: float = 30.0
    """How long `abort` waits for a viewer to come back."""
    retention_seconds: int = 3600
    """How long a finished stream log stays readable; at least an hour."""
    stall_timeout_seconds: float = 60.0
    """A client that takes nothing for this long is disconnected (its stream then follows `detached_policy`)."""
    continue_inexactly: frozenset[str] = frozenset(Inexact)
    """Values of `messages.Inexact`: where an answer goes on elsewhere although not as it would have."""
    intervention_excerpts: ExcerptRetention = ExcerptRetention.REDACTED
    """What the record of a guardrail's intervention keeps of the text."""
    weight: int = 1
    """Share in a fair queue beside other tenants of the same band, 1 to 100."""
    priority: int = 1
    """Band of requests that name none: 0 (high) to 3 (low)."""
    request_priorities: frozenset[int] = frozenset()
    """Bands that a request may name besides."""
    draft_tokens_per_minute: int = 100_000
    """What may be computed for prompts that are still being typed; 0 for nothing."""


class ApiKeyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One API key without its secret: gateways compare SHA-256 digests (`api_key.ApiKeyToken.matches`)."""

    id: str
    public_id: str
    secret_sha256: bytes
    tenant_id: str
    user_id: str | None = None
    """The member the key belongs to; None for a key of the tenant itself."""
    scopes: frozenset[str] = frozenset()
    """Values of `api_key.ApiKeyScope`; a scope unknown to this version grants nothing."""
    deployment_ids: frozenset[str] | None = None
    """Deployments the key may use; None for every one its tenant sees. Empty is none: the last one was deleted."""
    expires_at: float | None = None
    """Unix seconds, UTC."""
    revoked: bool = False
    """Revoked keys stay listed for a day so that a refusal can say so in the log; they never authenticate."""


class DeploymentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One model deployment: what gateways admit for and what its workers run."""

    id: str
    name: str
    """Public model name, what callers put into `model`."""
    model: str
    """Local path or Hugging Face id."""
    active: bool = True
    engine: EngineKind = EngineKind.VLLM
    engine_args: dict[str, Any] = {}
    """Allow-listed by the control plane; keys are vLLM's `EngineArgs` names, or the simulated engine's own."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together; None takes the model's own."""
    max_num_seqs: int = 32
    dtype: str = "auto"
    quantization: str | None = None
    default_max_tokens: int = 512
    """Tokens of an answer where the caller names none."""
    visible_tenant_ids: frozenset[str] | None = None
    """Tenants that may use it; None for all. An empty set is nobody."""
    prompt_price: int = 0
    """Millionths of the currency unit per million tokens, like the two below."""
    cached_price: int = 0
    """Of prompt tokens that came from the prefix cache."""
    completion_price: int = 0
    queue_limit: int = 1024
    """Waiting requests; one more is refused."""
    queue_timeout_seconds: float = 120.0
    """From admission to claim."""
    ttft_timeout_seconds: float = 120.0
    """From claim to the first token."""
    inter_token_timeout_seconds: float = 60.0
    batch_min: int = 1
    batch_max: int | None = None
    """Upper bound of concurrently running requests a worker claims; None takes `max_num_seqs`."""
    batch_control: BatchControl = BatchControl.OFF
    batch_tpot_goal_seconds: float = 0.05
    batch_ttft_goal_seconds: float = 0.5
    prefills_drafts: bool = True
    """Whether prompts are computed while they are still being typed."""
    sleep_after_seconds: float = 0.0
    """For how long an engine may be unused before its worker ends it; 0 for ever."""
    breaker: BreakerTerms | None = None
    """None: requests are admitted whatever workers do."""
    fallback: str | None = None
    """Name of the deployment that takes requests while the breaker is open; its own fallback is not asked."""
    preload_priority: int = 100
    """Of engines that load on one machine at the same time, those with smaller numbers go first."""
    adapter: AdapterUse | None = None
    """Set by gateways alone, for who asked for `<deployment>:<adapter>`; never in a snapshot."""

    @property
    def public_name(self) -> str:
        """What the caller calls it: the deployment's name, with the adapter's where one was asked for."""
        return self.name if self.adapter is None else f"{self.name}{SEPARATOR}{self.adapter.name}"


class QuotaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One quota. None means "no limit of this kind". A deployment id beside another scope narrows the quota to it."""

    id: str
    scope: QuotaScope
    tenant_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    deployment_id: str | None = None
    rpm_limit: int | None = None
    tpm_limit: int | None = None
    max_parallel_requests: int | None = None
    max_budget_micros: int | None = None
    """Millionths of the currency unit per `budget_duration`."""
    soft_budget_micros: int | None = None
    """Passing it is announced, not refused."""
    token_budget: int | None = None
    """Prompt and completion tokens per `budget_duration`."""
    budget_duration: BudgetDuration | None = None
    override_factor: float = 1.0
    """For a while, limits are so many times what they are above (the announced budget stays)."""
    override_until: float = 0.0
    """Unix seconds, UTC."""


class ConfigSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a gateway needs to authenticate, admit and route. `version` orders snapshots."""

    version: int
    tenants: list[TenantConfig] = []
    api_keys: list[ApiKeyConfig] = []
    deployments: list[DeploymentConfig] = []
    quotas: list[QuotaConfig] = []
    guardrails: list[GuardAttachment] = []
    prompt_caches: list[PromptCacheConfig] = []
    response_caches: list[ResponseCacheTerms] = []
    adapters: list[AdapterConfig] = []


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(ConfigSnapshot)


def encode_snapshot(snapshot: ConfigSnapshot) -> bytes:
    """Returns the msgpack form; equal snapshots encode to equal bytes."""
    return _encoder.encode(snapshot)


def decode_snapshot(data: bytes) -> ConfigSnapshot:
    """Reads what `encode_snapshot` wrote. Unknown fields are ignored; a broken one raises `msgspec.DecodeError`."""
    return _decoder.decode(data)
