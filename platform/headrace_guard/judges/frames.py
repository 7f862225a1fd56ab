"""What a judging child and its owner say to each other: length-prefixed msgpack on the child's stdin and stdout."""

from typing import BinaryIO

import msgspec
from msgspec import Struct

from headrace_guard.judges.verdicts import Verdict
from headrace_wire.guard_policy import AbuseRule, LanguageRule, TopicRule

PREFIX_BYTES = 4
CACHED_RULES = 128
"""Topic rules whose examples a child keeps embedded."""
QUESTION_FORM = "all-MiniLM-L6-v2 1"
"""Of packed questions (`likeness`): those of another encoder, or in another form, are not to be compared with them."""

LocalRule = TopicRule | AbuseRule | LanguageRule
"""Rules that a child judges; the others are put to deployments."""


class Job(Struct, frozen=True, array_like=True, tag="job"):
    """One text to be judged by one rule."""

    rule: LocalRule
    text: str


class Comparison(Struct, frozen=True, array_like=True, tag="compare"):
    """One question, and others that may ask for the same."""

    text: str
    known: tuple[bytes, ...] = ()
    """The others, as a `Likeness` had them packed."""
    least: float = 1.0
    """Similarity from which on one counts, 0 to 1."""
    same_words: bool = True
    """Whether it must say so with the same words, but for those that say little."""
    most: int = 1
    """How many are wanted."""


AnyJob = Job | Comparison


class Prepare(Struct, frozen=True, array_like=True, tag="prepare"):
    """Load what these rules need."""

    rules: tuple[LocalRule, ...]
    compares: bool = False
    """Whether questions will be compared, too."""


class Batch(Struct, frozen=True, array_like=True, tag="batch"):
    """Judge all of these."""

    jobs: tuple[AnyJob, ...]


class Trouble(Struct, frozen=True, array_like=True, tag="trouble"):
    """Why there is no verdict."""

    message: str


class Judged(Struct, frozen=True, array_like=True, tag="judged"):
    """A verdict."""

    found: bool
    score: float
    finding: str

    @property
    def verdict(self) -> Verdict:
        """Return it in the form that callers know."""
        return Verdict(self.found, self.score, self.finding)


class Likeness(Struct, frozen=True, array_like=True, tag="likeness"):
    """What a comparison has come to."""

    packed: bytes
    """The question, to be compared with; empty where the model does not read all of it: then nothing is like it."""
    nearest: tuple[tuple[int, float], ...]
    """Of `known`: index and similarity, the most alike first."""


Answer = Judged | Likeness | Trouble
Request = Prepare | Batch

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[list[Answer]] = msgspec.msgpack.Decoder(list[Answer])


def encode(message: Request | list[Answer]) -> bytes:
    """Return a whole frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def decode_request(body: bytes) -> Request:
    """Read a frame's body as what an owner sends."""
    return _requests.decode(body)


def decode_answers(body: bytes) -> list[Answer]:
    """Read a frame's body as what a child answers: one for each job, in order; none to `Prepare` where it went well."""
    return _answers.decode(body)


def read_frame(stream: BinaryIO) -> bytes | None:
    """Read one frame's body; None at the end of the stream."""
    prefix = stream.read(PREFIX_BYTES)
    if len(prefix) < PREFIX_BYTES:
        return None
    size = int.from_bytes(prefix, "big")
    body = stream.read(size)
    return body if len(body) == size else None
