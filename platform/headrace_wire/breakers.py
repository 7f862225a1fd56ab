"""The circuit breaker of a deployment: one state in Redis, moved by whichever gateway finds it time.

closed: requests are admitted, and how streams end is counted. open: none is admitted. half open: some are, to see
whether workers serve them; the first failure opens it again, for twice as long (up to eight times).
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from headrace_wire import redis_keys
from headrace_wire.functions import Argument, Call, Reply


class BreakerState(StrEnum):
    """Whether requests are admitted."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class OpenReason(StrEnum):
    """Why they are not."""

    ERRORS = "errors"
    """Workers failed too many streams."""
    ABSENT = "absent"
    """Somebody has asked, and no worker took requests for too long. It closes as soon as one does."""
    HAND = "hand"
    """A person wants it so, and it stays until a person closes it."""


class BreakerTerms(Struct, frozen=True, kw_only=True):
    """When a deployment's breaker opens, and how it is tried again."""

    error_share: float = 0.5
    """Of the streams that ended within the window: with so many failed by workers it opens."""
    min_ends: int = 20
    """With fewer ends in the window it does not."""
    window_seconds: float = 60.0
    absent_seconds: float = 30.0
    """0: the absence of workers does not open it."""
    open_seconds: float = 30.0
    probes: int = 3
    """Requests that must finish before it is closed."""


class Seen(Struct, frozen=True):
    """What one gateway saw of a deployment since it said so last."""

    finished: int = 0
    failed: int = 0
    """By workers: not by guardrails, clients or limits."""
    is_ready: bool = True
    """A worker takes requests, or wakes for them."""
    is_asked: bool = False
    wanted: int = 0
    """Requests that it would try the deployment with."""
    tried_finished: int = 0
    """Of the streams that ended, those that tried a half-open one: no others say how it does now."""
    tried_failed: int = 0
    tried_since_ms: int = 0
    """`BreakerReading.since_ms` when they were let in."""


class BreakerReading(Struct, frozen=True):
    """Where a breaker stands."""

    state: BreakerState = BreakerState.CLOSED
    since_ms: int = 0
    """Unix milliseconds; 0 where it never opened."""
    reason: OpenReason | None = None
    probes: int = 0
    """Requests that the asking gateway may try the deployment with."""
    retry_after_seconds: float = 1.0
    """When it may be closed again, at the earliest."""


def breaker_call(deployment_id: str, seen: Seen, terms: BreakerTerms) -> Call:
    """Return the call that files what was seen and answers with a reading."""
    args: list[Argument] = [
        seen.finished,
        seen.failed,
        int(seen.is_ready),
        int(seen.is_asked),
        seen.wanted,
        str(terms.error_share),
        terms.min_ends,
        _ms(terms.window_seconds),
        _ms(terms.absent_seconds),
        _ms(terms.open_seconds),
        terms.probes,
        *(seen.tried_finished, seen.tried_failed, seen.tried_since_ms),
    ]
    return "breaker", [redis_keys.breaker_key(deployment_id)], args


def breaker_parse(reply: Reply) -> BreakerReading:
    """Read the answer of `breaker_call`."""
    state, since, reason, probes, retry_ms = (part.decode() for part in reply)
    return BreakerReading(BreakerState(state), int(since), _reason(reason), int(probes), int(retry_ms) / 1000)


def breaker_move_call(deployment_id: str, *, is_open: bool) -> Call:
    """Return the call that opens or closes a breaker by hand; the answer is read by `breaker_parse`."""
    state = BreakerState.OPEN if is_open else BreakerState.CLOSED
    return "breaker_move", [redis_keys.breaker_key(deployment_id)], [state.value]


def breaker_stored(fields: Mapping[bytes, bytes]) -> BreakerReading:
    """Read a breaker's hash, as HGETALL gives it; an empty one is that of a breaker which never opened."""
    return BreakerReading(
        BreakerState(fields.get(b"state", b"closed").decode()),
        int(fields.get(b"since", b"0")),
        _reason(fields.get(b"reason", b"").decode()),
    )


def _reason(text: str) -> OpenReason | None:
    return OpenReason(text) if text else None


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
