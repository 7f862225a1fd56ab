"""What a client has of one answer, whichever connections it comes over.

Nothing is compared with the answer here: `verdicts` does, once all is over.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct

from headrace_wire.errors import DependencyUnavailableError, DrainingError, ServerOverloadedError

PASSING = frozenset({DrainingError.code, DependencyUnavailableError.code, ServerOverloadedError.code})
"""Errors of a gateway that say nothing of the stream: another attempt may do."""


class Transport(StrEnum):
    """Ways to an answer."""

    WEBSOCKET = "ws"
    """`generate`, then `resume` from the last position."""
    EVENTS = "events"
    """`GET /v1/streams/{id}/events` from the last position; cannot start a stream."""
    CHAT = "chat"
    """`POST /v1/chat/completions` with an Idempotency-Key: always from the beginning, without positions."""


class Hop(Struct, frozen=True):
    """One connection as it is meant to be."""

    transport: Transport
    gateway: int
    cut_at: int | None = None
    """Number of tokens with which the client is cut off; 0: as soon as it knows the stream's id."""
    pause_seconds: float = 0.0
    """How long it stays away then."""


class Leg(Struct):
    """One connection as it went. Times are `monotonic`, positions those of the last token that the client had."""

    hop: Hop
    opened_at: float
    opened_after: int
    closed_at: float = 0.0
    closed_after: int = 0
    why: str = ""


class PassedOverError(Exception):
    """This connection, or this gateway, cannot serve the stream now."""


class CutError(Exception):
    """The client is cut off, as its hop wants it."""


@dataclass
class Reader:
    """One client of one answer."""

    ports: Sequence[int]
    api_key: str
    model: str
    prompt: str
    max_tokens: int
    stream_id: str | None = None
    text: str = ""
    seq: int = 0
    """Position of the last token of `text`; 0 where the transport tells none."""
    pieces: int = 0
    """Messages that brought text."""
    arrivals: list[float] = field(default_factory=list)
    """When text came that it had not seen before, `monotonic`."""
    attempts: int = 0
    """Owners that the stream has had, as far as it was told."""
    is_ended: bool = False
    completion_tokens: int | None = None
    """As its end says."""
    failure: str = ""
    """Code of the error that ended the stream."""
    oddities: list[str] = field(default_factory=list)
    """What must not happen whatever the answer is."""
    legs: list[Leg] = field(default_factory=list)
    starts: int = 0
    """Requests that may have started a stream."""
    is_hung: bool = False
    may_start_anew: bool = False
    """Redis may forget an admission, and the caller's key with it: the same request then starts another stream."""
    idempotency_key: str = ""
    _known: str = ""

    @property
    def is_over(self) -> bool:
        return self.is_ended or bool(self.failure)

    @property
    def longest_silence(self) -> float:
        """The longest time between two texts, in seconds."""
        return max((b - a for a, b in pairwise(self.arrivals)), default=0.0)

    def name(self, hop: Hop, stream_id: str) -> None:
        """The stream's id came.

        Raises:
            CutError: this is where the client is cut off.
        """
        starts_anew = self.may_start_anew and hop.transport is Transport.CHAT
        if self.stream_id not in (None, stream_id) and not starts_anew:
            self.oddities.append(f"{self.stream_id} became {stream_id}")
        self.stream_id = stream_id
        if hop.cut_at == 0:
            raise CutError

    def begin_again(self) -> None:
        """The answer comes from its beginning: what came before must come again."""
        self._known = max(self._known, self.text, key=len)
        self.text, self.seq, self.pieces = "", 0, 0

    def take(self, hop: Hop, text: str, *, seq: int | None, after: int | None = None) -> None:
        """Text came; `seq` is the position of its last token, `after` the one before its first, where they are told.

        Raises:
            CutError: this is where the client is cut off.
        """
        if self.is_over:
            self.oddities.append(f"text after the end: {text!r}")
        if seq is not None and seq <= self.seq:
            self.oddities.append(f"position {seq} after {self.seq}")
        if after is not None and after != self.seq:
            self.oddities.append(f"text after {after} where {self.seq} was the last position")
        self.text += text
        self.seq = seq or 0
        self.pieces += 1
        if len(self.text) > len(self._known):
            self.arrivals.append(time.monotonic())
        if not (self.text.startswith(self._known) or self._known.startswith(self.text)):
            self.oddities.append(f"{self.text!r} where {self._known!r} had come before")
        if hop.cut_at is not None and (self.pieces if seq is None else seq) >= hop.cut_at:
            raise CutError

    def finish(self, completion_tokens: int | None) -> None:
        """The answer is said to be complete."""
        if self.is_over or len(self.text) < len(self._known):
            self.oddities.append("it ended twice, or before what had come already")
        self.is_ended = True
        self.completion_tokens = completion_tokens

    def fail(self, code: str, message: str) -> None:
        """The server said `error`.

        Raises:
            PassedOverError: of itself, not of the stream.
        """
        if code in PASSING:
            raise PassedOverError(f"{code}: {message}")
        self.failure = code
