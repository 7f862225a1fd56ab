"""The frames of headrace.v1 (`docs/websocket.md`): what the server says, as typed values, and what the client says.

Unknown fields and unknown kinds of frames are ignored, so that a newer server can be talked to.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace_client.errors import ProtocolError

SUBPROTOCOL = "headrace.v1"

DRAFT_REF = "draft"
"""The `ref` of drafts, the only frames that have one: what is said of them is about no stream."""


Cache = Literal["hit", "semantic", "miss", "bypass"]


@dataclass(frozen=True, slots=True)
class Queued:
    """The stream waits; position 1 is next. Without an id it waits for a full gateway, and was not admitted yet."""

    stream_id: str | None
    position: int
    eta_ms: tuple[float, float] | None = None
    """Earliest and latest, where the server can tell."""
    reason: str | None = None
    """Why it is a later one than before (fair_share, priority, own_limit, capacity_lost); why nothing moves: no_worker,
    or waking where the model slept."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker has taken the stream; with `attempt` > 1, another one goes on with it."""

    stream_id: str
    seq: int
    attempt: int
    queue_ms: float
    cache: Cache | None = None
    """What the response cache had to do with it; None of a resumed stream."""
    cache_similarity: float | None = None
    """How alike the question is whose answer this is (`semantic`), 0 to 1."""
    deployment: str = ""
    """Who serves it, where the server says so: a fallback is not what was asked for."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Text up to position `seq`, which may be several tokens."""

    stream_id: str
    seq: int
    text: str
    after: int | None = None
    """The position before its first; None from a server that does not say."""


@dataclass(frozen=True, slots=True)
class Retract:
    """A guardrail takes text back: of all that came of the answer, the first `keep` characters stay."""

    stream_id: str
    from_seq: int
    keep: int


@dataclass(frozen=True, slots=True)
class Replacement:
    """A guardrail ended the answer; this text stands in its place, or in the place of its rest."""

    stream_id: str
    text: str


@dataclass(frozen=True, slots=True)
class SlowConsumer:
    """The engine waits for acknowledgements."""

    stream_id: str
    seq: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The engine's own count of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations in milliseconds, as the server measured them; `ttft_ms` is None where no text was sent."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float | None


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ended that did not fail. `finish_reason`: stop, length, content_filter or abort."""

    stream_id: str
    seq: int
    state: Literal["finished", "cancelled", "replaced"]
    finish_reason: str
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    cache: Cache | None = None
    cache_similarity: float | None = None
    """As in `Started`, both."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An `error` frame; without a stream id it is about the frame or the connection."""

    stream_id: str | None
    code: str
    message: str
    param: str | None


Event = Queued | Started | Delta | Retract | Replacement | SlowConsumer
"""What a stream tells on its way."""
Frame = Event | End | Failure


def parse(text: str | bytes) -> Frame | None:
    """Return the frame, or None for a kind that this version does not know.

    Raises:
        ProtocolError: it is no frame of headrace.v1.
    """
    try:
        fields = json.loads(text)
        build = _BUILDERS.get(fields["type"]) if fields.get("ref") != DRAFT_REF else None
        return None if build is None else build(fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError(f"The server sent a frame that is not {SUBPROTOCOL}: {type(error).__name__}.") from error


def _queued(fields: Mapping[str, Any]) -> Queued:
    stream_id, eta = fields.get("stream_id"), fields.get("eta_ms")
    return Queued(
        None if stream_id is None else str(stream_id),
        int(fields["position"]),
        None if eta is None else (float(eta[0]), float(eta[1])),
        None if fields.get("reason") is None else str(fields["reason"]),
    )


def _started(fields: Mapping[str, Any]) -> Started:
    return Started(
        str(fields["stream_id"]),
        int(fields["seq"]),
        int(fields["attempt"]),
        float(fields.get("queue_ms", 0.0)),
        _cache(fields),
        _similarity(fields),
        str(fields.get("deployment", "")),
    )


def _delta(fields: Mapping[str, Any]) -> Delta:
    after = fields.get("after")
    return Delta(
        str(fields["stream_id"]), int(fields["seq"]), str(fields["text"]), None if after is None else int(after)
    )


def _slow_consumer(fields: Mapping[str, Any]) -> SlowConsumer:
    return SlowConsumer(str(fields["stream_id"]), int(fields["seq"]), int(fields["acknowledged"]))


def _end(fields: Mapping[str, Any]) -> End:
    usage, timings = fields["usage"], fields["timings"]
    return End(
        str(fields["stream_id"]),
        int(fields["seq"]),
        _end_state(str(fields["state"])),
        str(fields["finish_reason"]),
        fields.get("stop_reason"),
        Usage(
            int(usage["prompt_tokens"]),
            int(usage["completion_tokens"]),
            int(usage["total_tokens"]),
            int(usage.get("cached_tokens", 0)),
        ),
        Timings(
            float(timings["queue_ms"]),
            float(timings["prefill_ms"]),
            float(timings["decode_ms"]),
            None if timings["ttft_ms"] is None else float(timings["ttft_ms"]),
        ),
        _cache(fields),
        _similarity(fields),
    )


def _cache(fields: Mapping[str, Any]) -> Cache | None:
    word = fields.get("cache")
    return word if word in ("hit", "semantic", "miss", "bypass") else None


def _similarity(fields: Mapping[str, Any]) -> float | None:
    similarity = fields.get("cache_similarity")
    return None if similarity is None else float(similarity)


def _end_state(state: str) -> Literal["finished", "cancelled", "replaced"]:
    if state == "cancelled":
        return "cancelled"
    return "replaced" if state == "replaced" else "finished"


def _retract(fields: Mapping[str, Any]) -> Retract:
    return Retract(str(fields["stream_id"]), int(fields["from_seq"]), int(fields["keep"]))


def _replacement(fields: Mapping[str, Any]) -> Replacement:
    return Replacement(str(fields["stream_id"]), str(fields["text"]))


def _failure(fields: Mapping[str, Any]) -> Failure:
    error = fields["error"]
    return Failure(fields.get("stream_id"), str(error.get("code")), str(error["message"]), error.get("param"))


_BUILDERS: dict[str, Callable[[Mapping[str, Any]], Frame]] = {
    "queued": _queued,
    "started": _started,
    "delta": _delta,
    "retract": _retract,
    "replacement": _replacement,
    "slow_consumer": _slow_consumer,
    "end": _end,
    "error": _failure,
}


def encode(kind: Literal["generate", "resume", "cancel", "ack", "draft"], **fields: object) -> str:
    """Return a frame of the client; fields that are None are left out."""
    named = {name: value for name, value in fields.items() if value is not None}
    return json.dumps({"type": kind, **named}, ensure_ascii=False, separators=(",", ":"))
