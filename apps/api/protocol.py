"""The WebSocket protocol `headrace.v1`: JSON text frames, many streams on one connection.

Client to server: `generate`, `resume`, `cancel`, `ack`, `draft`. Server to client: `queued`, `started`, `delta`,
`retract`, `replacement`, `end`, `error`, `draft_off`.
`seq` is the position of the last token that a frame covers; a client resumes with the last `seq` it has. The page
`docs/websocket.md` describes every field.
"""

import msgspec
from msgspec import Struct

from apps.api.answer import Answer
from apps.api.error_rendering import error_object, logged_error
from apps.api.requests import ChatMessage, SamplingFields, invalid_field
from apps.streams.drafts import DraftOff
from apps.streams.limits import QueueNews
from apps.streams.services import CacheOutcome
from headrace_wire.errors import HeadraceError, InvalidRequestError
from headrace_wire.messages import Ended, Replacement, SamplingParams, Started

SUBPROTOCOL = "headrace.v1"
TICKET_PREFIX = "headrace.ticket."
"""A second subprotocol that carries the chat's ticket: browsers cannot set headers, and a query string ends in logs."""

MAX_REF_LENGTH = 256


class Generate(SamplingFields, kw_only=True, tag_field="type", tag="generate"):
    """Start a stream.

    `ref` comes back in its frames. `window` asks for fewer tokens ahead of the acknowledged ones than the tenant
    allows. `notices` asks for `slow_consumer` frames.
    """

    model: str
    messages: list[ChatMessage]
    ref: str | None = None
    window: int | None = None
    notices: bool = False

    def sampling(self) -> SamplingParams:
        """Return the checked sampling parameters.

        Raises:
            InvalidRequestError: as of any request, or `window` is none.
        """
        if self.window is not None and self.window < 1:
            raise InvalidRequestError("`window` must be at least 1.", param="window")
        return super().sampling()


class Resume(Struct, kw_only=True, tag_field="type", tag="resume"):
    """Follow a stream of the tenant from after position `after`."""

    stream_id: str
    after: int = 0
    ref: str | None = None
    notices: bool = False


class CancelFrame(Struct, kw_only=True, tag_field="type", tag="cancel"):
    """Stop a stream."""

    stream_id: str


class Ack(Struct, kw_only=True, tag_field="type", tag="ack"):
    """The client has handled everything up to `seq`."""

    stream_id: str
    seq: int


class DraftFrame(Struct, kw_only=True, tag_field="type", tag="draft"):
    """The user is typing: `text` is so much of the message that comes after `messages`, or after the chat's own.

    An empty text takes the draft back. There is no answer, except that drafts are of no use.
    """

    model: str
    text: str
    messages: list[ChatMessage] | None = None
    conversation: str | None = None
    ref: str | None = None


Frame = Generate | Resume | CancelFrame | Ack | DraftFrame

_decoder = msgspec.json.Decoder(Frame)
_encode = msgspec.json.encode


def parse_frame(text: str | None) -> Frame:
    """Read a frame.

    Raises:
        InvalidRequestError: a binary frame, not JSON, an unknown type, or a field of the wrong type.
    """
    if text is None:
        raise InvalidRequestError(f"Binary frames are not part of {SUBPROTOCOL}; send JSON as text.")
    try:
        frame = _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from error
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"The frame is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise InvalidRequestError("The frame is nested too deeply.") from error
    if isinstance(frame, Generate | Resume | DraftFrame) and frame.ref is not None and len(frame.ref) > MAX_REF_LENGTH:
        raise InvalidRequestError(f"`ref` may have at most {MAX_REF_LENGTH} characters.", param="ref")
    return frame


class FrameWriter:
    """Frames of one stream; what they share is encoded once."""

    def __init__(self, stream_id: str, ref: str | None) -> None:
        self.cache: CacheOutcome | None = None
        """What the response cache had to do with it, where that is known."""
        self.deployment = ""
        """Who serves it: a fallback is not what was asked for."""
        self._identity: dict[str, object] = {"stream_id": stream_id}
        if ref is not None:
            self._identity["ref"] = ref
        head = _encode({"type": "delta", **self._identity}).decode()
        self._delta_head = f'{head[:-1]},"after":'

    def place(self, news: QueueNews) -> str:
        """Return the frame that tells a stream where it stands in the queue: its first, and again when that changes."""
        return self._frame("queued", **_place(news))

    def started(self, entry: Started) -> str:
        """Return the frame that says that a worker has taken the stream (again, with `attempt` > 1)."""
        queue_ms = round(entry.queue_time * 1000, 3)
        return self._frame(
            "started",
            seq=entry.seq,
            attempt=entry.attempt,
            queue_ms=queue_ms,
            deployment=self.deployment,
            **self._cached(),
        )

    def delta(self, after: int, seq: int, text: str) -> str:
        """Return a frame with the text of the positions `after` + 1 to `seq`."""
        return f'{self._delta_head}{after},"seq":{seq},"text":{_encode(text).decode()}}}'

    def retract(self, replacement: Replacement) -> str:
        """Return the frame that takes text back: of all that came, the first `keep` characters stay."""
        return self._frame("retract", from_seq=replacement.retract_from, keep=replacement.keep_characters)

    def replacement(self, replacement: Replacement) -> str:
        """Return the frame with what stands in the place of a blocked answer, or of its rest."""
        return self._frame("replacement", text=replacement.text)

    def slow_consumer(self, seq: int, acknowledged: int) -> str:
        """Return the frame that says that the engine waits for acknowledgements."""
        return self._frame("slow_consumer", seq=seq, acknowledged=acknowledged)

    def end(self, ended: Ended, *, queue_seconds: float, ttft_seconds: float | None) -> str:
        """Return the frame that ends a stream that finished or was cancelled."""
        usage, timings = ended.usage, ended.timings
        return self._frame(
            "end",
            seq=ended.seq,
            state=ended.state.value,
            finish_reason=ended.finish_reason.value,
            stop_reason=ended.stop_reason,
            usage={
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            timings={
                "queue_ms": round(queue_seconds * 1000, 3),
                "prefill_ms": round(timings.prefill_time * 1000, 3),
                "decode_ms": round(timings.decode_time * 1000, 3),
                "ttft_ms": None if ttft_seconds is None else round(ttft_seconds * 1000, 3),
            },
            **self._cached(),
        )

    def error(self, error: HeadraceError) -> str:
        """Return the frame that ends a stream that failed."""
        return self._frame("error", error=error_object(error))

    def _cached(self) -> dict[str, object]:
        if self.cache is None:
            return {}
        told: dict[str, object] = {"cache": self.cache.word.value}
        if self.cache.similarity is not None:
            told["cache_similarity"] = round(self.cache.similarity, 3)
        return told

    def _frame(self, kind: str, **fields: object) -> str:
        return _encode({"type": kind, **self._identity, **fields}).decode()


def waiting_frame(news: QueueNews, *, ref: str | None) -> str:
    """Return a `queued` frame of a stream that has no id yet: it waits in the gateway's line."""
    fields: dict[str, object] = {"type": "queued", **_place(news)}
    if ref is not None:
        fields["ref"] = ref
    return _encode(fields).decode()


def draft_off_frame(off: DraftOff, *, ref: str | None) -> str:
    """Return the frame that says that nothing is computed for drafts, and when to try again."""
    fields: dict[str, object] = {"type": "draft_off", "reason": off.reason.value}
    if off.retry_after_seconds is not None:
        fields["retry_after_ms"] = round(off.retry_after_seconds * 1000)
    if ref is not None:
        fields["ref"] = ref
    return _encode(fields).decode()


def _place(news: QueueNews) -> dict[str, object]:
    fields: dict[str, object] = {"position": news.position}
    if news.eta_seconds is not None:
        fields["eta_ms"] = [round(seconds * 1000) for seconds in news.eta_seconds]
    if news.reason:
        fields["reason"] = news.reason
    return fields


def final_frames(writer: FrameWriter, answer: Answer) -> list[str]:
    """Return the frames that end a stream, which must have ended.

    The last one is `end`, or `error` for one that failed; before it, what a guardrail took back and put in its place.
    """
    ended = answer.ended
    if ended is None:
        raise ValueError("the stream has not ended")
    if ended.error is not None:
        return [writer.error(logged_error(ended.error))]
    frames = [writer.end(ended, queue_seconds=answer.queue_seconds, ttft_seconds=answer.ttft_seconds)]
    if ended.replacement is not None:
        frames.insert(0, writer.replacement(ended.replacement))
        if ended.replacement.retract_from is not None:
            frames.insert(0, writer.retract(ended.replacement))
    return frames


def error_frame(error: HeadraceError, *, stream_id: str | None = None, ref: str | None = None) -> str:
    """Return an error that belongs to a frame rather than to a running stream."""
    named = {"stream_id": stream_id, "ref": ref}
    fields = {name: value for name, value in named.items() if value is not None}
    return _encode({"type": "error", **fields, "error": error_object(error)}).decode()
