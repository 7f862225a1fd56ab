"""What a stream used, as its settlement writes it: one event a stream, kept until the ledger has it.

Owner: `lua/settle.lua`, in the same step as the end of the stream, so that there is exactly one event for each. The
ledger (`apps.usage`) reads from the oldest on, commits to its database, and deletes what it has committed: an event may
be read twice and must be unique by stream id there.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from headrace_wire.messages import FinishReason, StreamState


class AnswerSource(StrEnum):
    """Where an answer came from."""

    ENGINE = "engine"
    CACHE = "cache"
    """Kept from an earlier request."""
    SHARED = "shared"
    """Another caller's stream, of the same request at the same time."""


class UsageEvent(Struct, frozen=True, kw_only=True):
    """One ended stream."""

    stream_id: str
    tenant_id: str
    api_key_id: str = ""
    """Empty for the chat."""
    user_id: str = ""
    """The member; empty for a key of the tenant itself."""
    deployment_id: str = ""
    deployment: str
    adapter: str = ""
    """Name of the LoRA adapter that it was asked of; empty for the model as it is."""
    state: StreamState
    finish_reason: FinishReason
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those of the prompt that came from the prefix cache."""
    completion_tokens: int = 0
    cost_micros: int = 0
    """Millionths of the currency unit, by the prices at admission."""
    admitted_ms: int = 0
    """Unix milliseconds by Redis' clock, as the one below."""
    ended_ms: int = 0
    source: AnswerSource = AnswerSource.ENGINE
    owner: str = ""
    """Incarnation that had it at its end: a worker, or the gateway that ended what no worker had."""


def usage_event(fields: Mapping[bytes, bytes]) -> UsageEvent:
    """Read an entry of `redis_keys.usage_key()`."""
    text = {name.decode(): value.decode() for name, value in fields.items()}

    def number(name: str) -> int:
        return int(text.get(name) or 0)

    return UsageEvent(
        stream_id=text["stream"],
        tenant_id=text.get("tenant", ""),
        api_key_id=text.get("key", ""),
        user_id=text.get("user", ""),
        deployment_id=text.get("deployment_id", ""),
        deployment=text.get("deployment", ""),
        adapter=text.get("adapter", ""),
        state=StreamState(text["state"]),
        finish_reason=FinishReason(text["finish"]),
        prompt_tokens=number("prompt"),
        cached_tokens=number("cached"),
        completion_tokens=number("completion"),
        cost_micros=number("cost"),
        admitted_ms=number("admitted_ms"),
        ended_ms=number("ended_ms"),
        source=AnswerSource(text.get("source") or AnswerSource.ENGINE),
        owner=text.get("owner", ""),
    )


def usage_fields(event: UsageEvent) -> Sequence[str | int]:
    """Return the entry's flat list of names and values, as `XADD` takes them: for tests and for repairs by hand."""
    return [
        *("stream", event.stream_id, "tenant", event.tenant_id, "key", event.api_key_id, "user", event.user_id),
        *("deployment_id", event.deployment_id, "deployment", event.deployment, "adapter", event.adapter),
        *("state", event.state.value, "finish", event.finish_reason.value),
        *("prompt", event.prompt_tokens, "cached", event.cached_tokens, "completion", event.completion_tokens),
        *("cost", event.cost_micros, "admitted_ms", event.admitted_ms, "ended_ms", event.ended_ms),
        *("source", event.source.value, "owner", event.owner),
    ]
