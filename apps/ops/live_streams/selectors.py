"""Live streams as Redis tells them: found through whoever has them, in pages, with a fixed number of round trips."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from math import ceil

from apps.ops.live_streams.fleet import Fleet, fleet_read
from apps.tenants.live_state import redis_client
from headrace_wire import codec, redis_keys
from headrace_wire.functions import Reply
from headrace_wire.ids import is_stream_id, shard_of
from headrace_wire.messages import Delta, Ended, StreamState

PER_PAGE = 50
MOST_LOOKED_AT = 5000
"""Streams among which a page is chosen. Beyond these the list says that it is not complete."""

_RECORD = (
    *("tenant", "deployment", "state", "epoch", "owner", "admitted_ms", "credit", "window", "reason", "attempts"),
    *("prompt", "cancel"),
)


class Phase(StrEnum):
    """What happens to a stream."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    HELD = "held"
    SUSPENDED = "suspended"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """Which streams; empty fields do not matter."""

    deployment: str = ""
    tenant_id: str = ""
    worker: str = ""
    state: StreamState | None = None


@dataclass(frozen=True, slots=True)
class LiveStream:
    """One stream at one moment. Counts of tokens are of the answer."""

    stream_id: str
    tenant_id: str
    deployment: str
    state: StreamState
    phase: Phase
    reason: str
    """Why it is held or suspended."""
    worker: str
    tokens: int
    credit: int
    """Position up to which it may generate; meaningless without a window."""
    window: int
    """0: no limit."""
    prompt_tokens: int
    attempts: int
    age: timedelta
    gateways: tuple[str, ...]
    """Those through which somebody reads it, or did when it was last looked."""
    viewers: int
    """How many read it, all gateways together, as of their last second."""

    @property
    def lag(self) -> int | None:
        """Tokens that its reader has not acknowledged; None where nobody acknowledges."""
        return max(0, self.tokens - (self.credit - self.window)) if self.window else None


@dataclass(frozen=True, slots=True)
class StreamPage:
    """A part of the list, with the fleet as it was found."""

    rows: list[LiveStream]
    number: int
    pages: int
    total: int
    is_complete: bool
    fleet: Fleet = field(repr=False)


def live_stream_page(
    *, wanted: StreamFilter, deployments: Sequence[str], number: int = 1, per_page: int = PER_PAGE
) -> StreamPage:
    """Returns a page of those that `wanted` describes, the longest in their state first; waiting ones before all.

    `deployments` are those that may have queues. At most four round trips, whatever there is.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    fleet = fleet_read(most_suspended=MOST_LOOKED_AT + 1)
    found = _candidates(fleet, wanted, deployments)
    is_complete = len(found) <= MOST_LOOKED_AT
    found = found[:MOST_LOOKED_AT]
    if wanted.tenant_id or wanted.state in {StreamState.RUNNING, StreamState.HELD} or wanted.deployment:
        found = _matching(found, wanted)
    pages = max(1, ceil(len(found) / per_page))
    number = min(max(1, number), pages)
    chosen = found[(number - 1) * per_page : number * per_page]
    return StreamPage(_streams(chosen, fleet), number, pages, len(found), is_complete, fleet)


def live_streams_get(*, stream_ids: Iterable[str]) -> list[LiveStream]:
    """Returns those of the streams that have not ended.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    return _streams([stream_id for stream_id in stream_ids if is_stream_id(stream_id)], fleet_read())


def _candidates(fleet: Fleet, wanted: StreamFilter, deployments: Sequence[str]) -> list[str]:
    """Returns ids of streams that may be wanted, in the list's order."""
    state = wanted.state
    has_owner = state in {None, StreamState.RUNNING, StreamState.HELD}
    workers = [
        one.incarnation
        for one in fleet.workers.values()
        if has_owner and wanted.worker in {"", one.incarnation} and wanted.deployment in {"", one.deployment}
    ]
    waits = state in {None, StreamState.QUEUED} and not wanted.worker
    queues = sorted({*deployments, *(one.deployment for one in fleet.workers.values())}) if waits else []
    queues = [name for name in queues if wanted.deployment in {"", name}]
    pipeline = redis_client().pipeline(transaction=False)
    for incarnation in workers:
        pipeline.hgetall(redis_keys.assigned_key(incarnation))
    for name in queues:
        pipeline.srandmember(redis_keys.waiting_key(name), MOST_LOOKED_AT + 1)
    reply: Reply = pipeline.execute() if workers or queues else []
    owned = [pair for assigned in reply[: len(workers)] for pair in assigned.items()]
    owned.sort(key=lambda pair: (int(pair[1].split(b":")[1]), pair[0]))
    waiting = sorted(stream_id for queue in reply[len(workers) :] for stream_id in queue)
    suspended = fleet.suspended if state in {None, StreamState.SUSPENDED} and not wanted.worker else {}
    return [*(one.decode() for one in waiting), *(name.decode() for name, _ in owned), *suspended]


def _matching(stream_ids: Sequence[str], wanted: StreamFilter) -> list[str]:
    pipeline = redis_client().pipeline(transaction=False)
    for stream_id in stream_ids:
        pipeline.hmget(redis_keys.stream_key(stream_id), ["tenant", "deployment", "state"])
    reply: Reply = pipeline.execute() if stream_ids else []
    asked = [one.encode() for one in (wanted.tenant_id, wanted.deployment, wanted.state.value if wanted.state else "")]
    return [
        stream_id
        for stream_id, row in zip(stream_ids, reply, strict=True)
        if all(want in {b"", has} for want, has in zip(asked, row, strict=True))
    ]


def _streams(stream_ids: Sequence[str], fleet: Fleet) -> list[LiveStream]:
    pipeline = redis_client().pipeline(transaction=False)
    for stream_id in stream_ids:
        shard = shard_of(stream_id, redis_keys.LOG_SHARDS)
        pipeline.hmget(redis_keys.stream_key(stream_id), list(_RECORD))
        pipeline.xrevrange(redis_keys.log_key(stream_id, shard), count=1)
        pipeline.get(redis_keys.readers_key(stream_id, shard))
    reply: Reply = pipeline.execute() if stream_ids else []
    rows = [_stream(stream_id, *reply[3 * at : 3 * at + 3], fleet=fleet) for at, stream_id in enumerate(stream_ids)]
    return [row for row in rows if row is not None]


def _stream(stream_id: str, record: Reply, tail: Reply, readers: Reply, *, fleet: Fleet) -> LiveStream | None:
    f = {name: (raw or b"").decode() for name, raw in zip(_RECORD, record, strict=True)}
    if not f["state"] or StreamState(f["state"]).is_terminal:
        return None
    entry = codec.decode_log_entry(tail[0][1][b"d"]) if tail else None
    tokens = entry.seq - isinstance(entry, Ended) if entry is not None else 0
    now_ms, gateways = int(fleet.at.timestamp() * 1000), tuple((readers or b"").decode().split())
    state = StreamState(f["state"])
    return LiveStream(
        stream_id,
        f["tenant"],
        f["deployment"],
        state,
        _phase(state, has_text=isinstance(entry, Delta), is_ending=isinstance(entry, Ended) or bool(f["cancel"])),
        f["reason"] if state in {StreamState.HELD, StreamState.SUSPENDED} else "",
        f["owner"],
        tokens,
        int(f["credit"] or 0),
        int(f["window"] or 0),
        int(f["prompt"] or 0),
        int(f["attempts"] or 0),
        timedelta(milliseconds=max(0, now_ms - int(f["admitted_ms"] or now_ms))),
        gateways,
        sum(fleet.gateways[one].readers.get(stream_id, 1) for one in gateways if one in fleet.gateways),
    )


def _phase(state: StreamState, *, has_text: bool, is_ending: bool) -> Phase:
    if is_ending:
        return Phase.ENDING
    if state is StreamState.RUNNING:
        return Phase.DECODE if has_text else Phase.PREFILL
    return Phase(state.value)
