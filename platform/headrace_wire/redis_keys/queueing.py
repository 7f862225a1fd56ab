"""Streams, who has them, and the queues in which they wait."""

from headrace_wire.redis_keys.tags import CONTROL_TAG


def stream_prefix() -> str:
    """Common start of all stream records, for functions that find stream ids themselves."""
    return f"{CONTROL_TAG}:stream:"


def stream_key(stream_id: str) -> str:
    """Stream record. Owner: the Redis functions. HASH, TTL while alive `STREAM_MAX_SECONDS`, then the tombstone's."""
    return stream_prefix() + stream_id


def queue_prefix() -> str:
    """Common start of all queues."""
    return f"{CONTROL_TAG}:queue:"


def queue_key(deployment: str) -> str:
    """Waiting streams of a deployment that were served before.

    Owner: the Redis functions. LIST of ids, head is next.
    """
    return queue_prefix() + deployment


# The fair queue. Its other keys are made by `lua/_fair_queue.lua` from the queue's; here is what each is.


def waiting_prefix() -> str:
    """Common start of the sets of those who wait."""
    return f"{CONTROL_TAG}:waiting:"


def waiting_key(deployment: str) -> str:
    """Ids of all streams that wait for a deployment, wherever they stand. Owner: the Redis functions. SET."""
    return waiting_prefix() + deployment


def parked_here_key(deployment: str) -> str:
    """Those of `waiting_key` that wait for a slot of a quota. Owner: the Redis functions. SET of stream ids."""
    return f"{CONTROL_TAG}:parked-here:{deployment}"


def lane_key(band: int, tenant_id: str, deployment: str) -> str:
    """A tenant's new streams, in order. Owner: the Redis functions. LIST of stream ids."""
    return f"{CONTROL_TAG}:lane:{band}:{tenant_id}:{deployment}"


def band_key(band: int, deployment: str) -> str:
    """Tenants that have streams in their lanes. Owner: the Redis functions. ZSET tenant id -> its counter."""
    return f"{CONTROL_TAG}:band:{band}:{deployment}"


def served_key(band: int, deployment: str) -> str:
    """What tenants were served. Owner: the Redis functions.

    HASH `c:<tenant>` (counter: prompt tokens + 2 x generated ones, over the weight), `in:` and `out:<tenant>` (numbers
    of the lane's last and first stream), `last` (tenant whose lane ran empty last), `mean` (what a stream costs). For
    what is told, kept by `lua/_waiting.lua`: `claim:<tenant>` (its last one), `turns:<tenant>` (claims of anybody from
    one of its to the next), `alone:<tenant>` (how long one of its waits that came while no other did, times
    all places, ms), `spread:<tenant>` (how its waits compare with what was expected). TTL a day.
    """
    return f"{CONTROL_TAG}:served:{band}:{deployment}"


def pace_key(deployment: str) -> str:
    """How fast waiting streams are claimed. Owner: the Redis functions.

    HASH `place` (how long a place serves a stream, ms), `spread` (how waits compare with what was expected), `places`
    (how many streams all workers run at once) and `places_until` (when the last of them must have renewed),
    `places:<worker>` and `claim:<worker>` (its last one), `number` (of claims), `turn` (of bands), `workers` (how many
    there are); where there are several, `running:<worker>` (streams) and `lately:<worker>` (claims, `<decayed number>
    <when that was so>`). TTL a day.
    """
    return f"{CONTROL_TAG}:pace:{deployment}"


def places_key(deployment: str) -> str:
    """How many streams each worker runs at once.

    Owner: the Redis functions. ZSET `<incarnation> <places>` -> end of its lease, Redis milliseconds. TTL a day.
    """
    return f"{CONTROL_TAG}:places:{deployment}"


def knocks_key(deployment: str) -> str:
    """Says that a stream came of whose tenant none waited: workers may have a spare place for it.

    Owner: the Redis functions. STREAM, empty field `d`, some 64 long, TTL a day.
    """
    return f"{CONTROL_TAG}:knocks:{deployment}"


# Prefix affinity (`lua/_prefixes.lua`).


def held_key(incarnation: str) -> str:
    """Prefixes that a worker's engine holds computed. Owner: `claim`, then that worker's reports.

    SET of hashes (`prefix_hashes`, 8 bytes), some 131,072 at most, TTL = lease. None where it serves its deployment
    alone.
    """
    return f"{CONTROL_TAG}:held:{incarnation}"


def own_bell_key(incarnation: str) -> str:
    """Wakes one worker: a stream waits that it is preferred for.

    Owner: the Redis functions. LIST of "1", at most 64 long, TTL 10 s; a stale ring is harmless.
    """
    return f"{bell_prefix()}@{incarnation}"


def slots_key(quota_id: str) -> str:
    """Streams that run under a quota of parallel requests. Owner: the Redis functions. SET of stream ids."""
    return f"{CONTROL_TAG}:slots:{quota_id}"


def parked_key(quota_id: str) -> str:
    """Streams that wait for a slot of a quota. Owner: the Redis functions. LIST of stream ids, head is next."""
    return f"{CONTROL_TAG}:parked:{quota_id}"


def bell_prefix() -> str:
    """Common start of all bells."""
    return f"{CONTROL_TAG}:bell:"


def bell_key(deployment: str) -> str:
    """Wakes a worker that has room.

    Owner: the Redis functions. LIST of "1", at most 1,024 long, no TTL; a stale ring is harmless.
    """
    return bell_prefix() + deployment


def incarnations_key() -> str:
    """Leases of processes. Owner: the Redis functions. ZSET incarnation -> expiry, Redis milliseconds."""
    return f"{CONTROL_TAG}:incarnations"


def assigned_prefix() -> str:
    """Common start of all assignment tables."""
    return f"{CONTROL_TAG}:assigned:"


def assigned_key(incarnation: str) -> str:
    """Streams that an incarnation owns. Owner: the Redis functions. HASH stream id -> `<epoch>:<assigned at, ms>`."""
    return assigned_prefix() + incarnation


def suspended_key() -> str:
    """Suspended streams.

    Owner: the Redis functions. ZSET stream id -> suspended at, Redis milliseconds; the reaper ends old ones.
    """
    return f"{CONTROL_TAG}:suspended"


def deadlines_key() -> str:
    """Streams that wait to be claimed.

    Owner: the Redis functions. ZSET stream id -> until when it may wait, Redis milliseconds; the reaper ends those that
    still do.
    """
    return f"{CONTROL_TAG}:deadlines"


def left_behind_key() -> str:
    """Gateways that have died, whose streams nobody has looked after yet.

    Owner: the Redis functions. ZSET gateway incarnation -> until when another gateway does so, Redis milliseconds.
    """
    return f"{CONTROL_TAG}:left-behind"


def control_prefix() -> str:
    """Common start of all control channels."""
    return f"{CONTROL_TAG}:ctl:"


def control_key(incarnation: str) -> str:
    """Cancel, credit, warm-up, drain for one worker; drain for one gateway.

    Owner: that process. STREAM, field `d` = msgpack `ControlMessage`, at most ~4,096, TTL = lease.
    """
    return control_prefix() + incarnation


def idempotency_key(tenant_id: str, digest: str) -> str:
    """Stream that a caller's `Idempotency-Key` started. Owner: `admit`. STRING, TTL as the log's retention and a day.

    `digest` is a hash of the caller's text: it may be long, and holds what it likes.
    """
    return f"{CONTROL_TAG}:idem:{tenant_id}:{digest}"
