"""What the Redis functions that decide over streams answer, as typed values."""

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from headrace_wire import codec
from headrace_wire.admission import RateLimit, Rates, Refusal, RefusalKind
from headrace_wire.functions import Reply
from headrace_wire.messages import GenerateRequest, StreamState


class Verdict(StrEnum):
    """Admission's answer."""

    QUEUED = "queued"
    FULL = "full"
    KNOWN = "known"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    """A quota does not allow it."""
    RIDES = "rides"
    """The same static request runs already, and is given to this caller too."""


class Idempotency(Struct, frozen=True):
    """A caller's `Idempotency-Key` and what it was first used for."""

    key_digest: str
    body_digest: str
    created_at: int
    """Unix seconds of the first request; every repetition tells the same."""


class Place(Struct, frozen=True):
    """Where a waiting stream stands, and how fast those before it go."""

    position: int
    """1 is next."""
    is_own_limit: bool
    """It waits for another request of its own tenant, member or key to end."""
    served_before: int
    """Streams ahead that had been served before: resumed, or those of a lost worker."""
    higher: int
    """Streams ahead that are of a higher priority."""
    expected_seconds: float
    """How long it should wait."""
    least: float
    """A tenth of all waits is shorter than this share of what was expected."""
    most: float
    """A tenth is longer than that."""
    samples: int
    """Waits that this was measured from."""
    places: int = -1
    """How many streams the deployment's workers run at once; -1 where none has said."""


class Admission(Struct, frozen=True):
    """Admission's answer with what belongs to it."""

    verdict: Verdict
    position: int = 0
    """Place in the queue (1 is next), or its length when it is full."""
    duplicate_of: str = ""
    """Stream that the idempotency key started; RIDES: that it is given."""
    duplicate_created_at: int = 0
    duplicate_body: str = ""
    """Digest of the body that it was started with."""
    is_own_queue: bool = False
    """FULL because of what the tenant itself has waiting."""
    refusal: Refusal | None = None
    rates: Rates = Rates()
    place: Place | None = None
    """Where it waits, with the pace of those before it; FULL: when the next of those that wait should go."""
    may_be_left: bool = False
    """Workers may leave it to a preferred one: when that time is over, it is to be offered to all (`offer`)."""
    draft: bytes = b""
    """Name of the draft that it was the first to go on from (`draft_budget`)."""


class Preference(StrEnum):
    """What became of leaving a stream to the worker that holds its prompt's beginning."""

    NONE = ""
    """No worker was preferred."""
    TAKEN = "taken"
    """The preferred one has it."""
    EXPIRED = "expired"
    """It did not take it in time, or had too much to do then: another one has it."""


class Claimed(Struct, frozen=True):
    """A stream that this worker owns from now on."""

    stream_id: str
    epoch: int
    queue_time: float
    """Seconds from admission to claim, both ends on Redis' clock."""
    attempt: int
    is_late: bool
    """Its queue deadline passed before anybody took it."""
    request: GenerateRequest
    credit: int = 0
    """Position up to which it may generate; 0 for no limit."""
    had_owner: bool = False
    """Somebody served it before: it goes on from its log."""
    preference: Preference = Preference.NONE
    held_blocks: int = 0
    """Blocks of its prompt that this worker's engine should have computed, as the index says."""


class Unreadable(Struct, frozen=True):
    """A stream that this worker owns from now on, whose request it cannot read: to be ended with an error."""

    stream_id: str
    epoch: int
    problem: str


class Taken(Struct, frozen=True):
    """A stream of a dead owner that the caller must bring to an end."""

    stream_id: str
    epoch: int
    tenant_id: str
    deployment: str
    attempts: int
    log_ttl_seconds: int
    cancel_reason: str


class Reaped(Struct, frozen=True):
    """What owners whose lease has ended left behind."""

    dead: list[str]
    """Their incarnations."""
    taken: list[Taken]
    """Streams that are the caller's now."""
    settled: list[str]
    """Streams that have ended; whether anybody was told is unknown."""


class Renewal(Struct, frozen=True):
    """What a renewed lease says of the streams that the incarnation works on."""

    lost: frozenset[str]
    cancelled: dict[str, str]
    """Stream id to reason."""


class CancelOutcome(StrEnum):
    """Where the cancel found the stream."""

    UNKNOWN = "unknown"
    ENDED = "ended"
    RUNNING = "running"
    QUEUED = "queued"


class GivenBack(StrEnum):
    """What became of a stream that its owner gave up."""

    SUSPENDED = "suspended"
    QUEUED = "queued"
    EXHAUSTED = "exhausted"
    """Its attempts are used up: the caller still owns it and must end it."""
    CANCELLED = "cancelled"
    """Its client does not want it any more: the caller still owns it and must end it."""
    LOST = "lost"
    """It was not the caller's (any more)."""


class LeaseLostError(Exception):
    """This incarnation's lease has ended: drop all work and start as a new one."""


class StreamRecord(Struct, frozen=True):
    """The stream as the record tells it, for its tenant's eyes."""

    tenant_id: str
    deployment: str
    state: StreamState
    epoch: int
    log_ttl_seconds: int
    credit: int = 0
    reason: str = ""
    """Why it is held or suspended."""
    window: int | None = None
    """Tokens that it may be ahead of the acknowledged ones; 0 for no limit, None where an older release started it."""
    rides: str = ""
    """The stream that it is given, where another caller of the same request started that."""
    second: str = ""
    """The stream that it has instead, where that one's worker or engine failed."""


RECORD_FIELDS = (
    *("tenant", "deployment", "state", "epoch", "log_ttl_ms", "credit", "reason", "window"),
    *("rides", "second"),
)
"""What `stream_record` reads, in its order."""


def admission(reply: Reply) -> Admission:
    """Read the answer of `admit`."""
    word, *rest = reply
    verdict = Verdict(word.decode())
    if verdict is Verdict.DUPLICATE:
        stream_id, body, created_at = rest[0].decode().split(":")
        return Admission(verdict, duplicate_of=stream_id, duplicate_body=body, duplicate_created_at=int(created_at))
    if verdict is Verdict.REFUSED:
        kind, quota_id, retry_ms, rates = rest
        retry = int(retry_ms)
        refusal = Refusal(RefusalKind(kind.decode()), quota_id.decode(), retry / 1000 if retry >= 0 else -1)
        return Admission(verdict, refusal=refusal, rates=rates_of(rates))
    if verdict is Verdict.RIDES:
        return Admission(verdict, duplicate_of=rest[0].decode(), rates=rates_of(rest[1]))
    if verdict is Verdict.QUEUED:
        position, rates, pace, prefers, draft = rest
        where = place([position, 0, 0, 0, pace])
        return Admission(verdict, position, rates=rates_of(rates), place=where, may_be_left=bool(prefers), draft=draft)
    if verdict is Verdict.FULL:
        number, own, pace = rest
        return Admission(verdict, int(number), is_own_queue=bool(own), place=place([1, 0, 0, 0, pace]))
    return Admission(verdict)


def rates_of(reply: Reply) -> Rates:
    """Read the rates that a decision tells."""
    limits = [
        RateLimit(limit, remaining, reset_ms / 1000) if limit >= 0 else None
        for limit, remaining, reset_ms in (reply[:3], reply[3:])
    ]
    return Rates(*limits)


def place(row: Reply) -> Place | None:
    """Read one row of `places`."""
    position, own, served_before, higher, (expected_ms, least, most, samples, places) = row
    if not position:
        return None
    numbers = float(expected_ms) / 1000, float(least), float(most), int(samples), int(places)
    return Place(int(position), bool(own), int(served_before), int(higher), *numbers)


def claimed_stream(row: Reply) -> Claimed:
    """Read one row of `claim`."""
    stream_id, epoch, admitted_ms, claimed_ms, attempt, late, request, credit, epoch_before, preference, blocks = row
    return Claimed(
        stream_id.decode(),
        int(epoch),
        max(0.0, (int(claimed_ms) - int(admitted_ms)) / 1000),
        int(attempt),
        bool(late),
        codec.decode_request(request),
        int(credit),
        int(epoch_before or 0) > 0,
        Preference(preference.decode()),
        int(blocks),
    )


def claimed_streams(rows: Reply, unreadable: Callable[[Unreadable], None] | None) -> list[Claimed]:
    """Read the answer of `claim`; `unreadable` is told of streams whose requests cannot be read.

    Raises:
        DecodeError: one cannot be, and nobody is to be told.
    """
    streams: list[Claimed] = []
    for row in rows:
        try:
            streams.append(claimed_stream(row))
        except codec.DecodeError as error:
            if unreadable is None:
                raise
            unreadable(Unreadable(row[0].decode(), int(row[1]), str(error)))
    return streams


def taken_stream(row: Sequence[bytes]) -> Taken:
    """Read one row of `reap`."""
    stream_id, epoch, tenant, deployment, attempts, ttl_ms, reason = row
    return Taken(
        stream_id.decode(),
        int(epoch),
        tenant.decode(),
        deployment.decode(),
        int(attempts),
        int(ttl_ms) // 1000,
        reason.decode(),
    )


def stream_record(row: Reply) -> StreamRecord | None:
    """Read a record's `RECORD_FIELDS`; None where there is no record (any more)."""
    tenant, deployment, state, epoch, ttl, credit, reason, window, rides, second = row
    if tenant is None or deployment is None or state is None:
        return None
    return StreamRecord(
        tenant.decode(),
        deployment.decode(),
        StreamState(state.decode()),
        int(epoch or 0),
        int(ttl or 0) // 1000,
        int(credit or 0),
        (reason or b"").decode(),
        None if window is None else int(window),
        (rides or b"").decode(),
        (second or b"").decode(),
    )
