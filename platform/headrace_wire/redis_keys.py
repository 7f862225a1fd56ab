"""Every Redis key of Headrace, one function each.

Two kinds of hash tag keep a cluster possible: `{hr}` holds counters, queues, leases and stream records (one shard, so
that one function can decide over all of them); `{hr<k>}` holds logs, token ids, readers and delivery of log shard k.
"""

CONTROL_TAG = "{hr}"
LOG_SHARDS = 1
"""Number of log shards. One until a cluster is used; `ids.shard_of` maps a stream to its shard."""


def _log_tag(shard: int) -> str:
    return f"{{hr{shard}}}"


# ---- configuration


def snapshot_key() -> str:
    """Config snapshot.

    Owner: Django. HASH `version` (decimal) and `data` (msgpack `ConfigSnapshot`), no TTL; see `snapshot`.
    """
    return f"{CONTROL_TAG}:snapshot"


def snapshot_version_key() -> str:
    """Last version handed out. Owner: Django. STRING, integer, no TTL."""
    return f"{CONTROL_TAG}:snapshot:version"


def snapshot_channel() -> str:
    """Pub/sub channel that carries a new version.

    A lost message is made good by the one-second re-read.
    """
    return f"{CONTROL_TAG}:snapshot:changed"


def keys_used_key() -> str:
    """Times of last use of API keys. Owner: gateways; Celery takes it. HASH public id -> Unix seconds, no TTL."""
    return f"{CONTROL_TAG}:keys:used"


# ---- streams and their queue


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
    """Cancel, credit, warm-up for one worker.

    Owner: that worker. STREAM, field `d` = msgpack `ControlMessage`, at most ~4,096, TTL = lease.
    """
    return control_prefix() + incarnation


def idempotency_key(tenant_id: str, digest: str) -> str:
    """Stream that a caller's `Idempotency-Key` started. Owner: `admit`. STRING, TTL as the log's retention and a day.

    `digest` is a hash of the caller's text: it may be long, and holds what it likes.
    """
    return f"{CONTROL_TAG}:idem:{tenant_id}:{digest}"


# ---- the response cache


def kept_answer_prefix(tenant_id: str) -> str:
    """Common start of a tenant's kept answers.

    Owner: the Redis functions. STRING by `<deployment id>:<digest>`, see `kept_answers`; TTL of its policy, an hour at
    most.
    """
    return f"{CONTROL_TAG}:kept:{tenant_id}:"


def kept_answers_used_key(tenant_id: str) -> str:
    """When a tenant's kept answers were given last. Owner: the Redis functions. ZSET name -> ms; TTL two hours."""
    return f"{CONTROL_TAG}:kept-used:{tenant_id}"


def kept_answers_ending_key(tenant_id: str) -> str:
    """When a tenant's kept answers end. Owner: the Redis functions. ZSET name -> ms; TTL two hours."""
    return f"{CONTROL_TAG}:kept-ending:{tenant_id}"


def kept_answers_sizes_key(tenant_id: str) -> str:
    """Sizes of a tenant's kept answers, and `total`. Owner: the Redis functions. HASH name -> bytes; TTL two hours."""
    return f"{CONTROL_TAG}:kept-sizes:{tenant_id}"


def flight_key(tenant_id: str, member: str) -> str:
    """Stream that runs for a static request. Owner: `admit`. STRING, stream id; TTL as the record of a live stream.

    `member` is the name that its answer has when it is kept.
    """
    return f"{CONTROL_TAG}:flight:{tenant_id}:{member}"


def riders_key(stream_id: str) -> str:
    """Callers that are given a stream which another one started.

    Owner: `lua/_riders.lua`. HASH rider's stream id -> how it is booked (msgpack), TTL as the record's.
    """
    return f"{CONTROL_TAG}:riders:{stream_id}"


def finished_answers_key() -> str:
    """Finished streams whose answer is to be kept. Owner: `settle` writes, gateways take. LIST of ids; TTL a minute."""
    return f"{CONTROL_TAG}:finished-answers"


# ---- admission and the ledger


def bucket_prefix() -> str:
    """Common start of the token buckets."""
    return f"{CONTROL_TAG}:bucket:"


def bucket_key(quota_id: str) -> str:
    """Rates of a quota. Owner: the Redis functions.

    HASH `rpm`, `tpm` (what is left, a decimal fraction) and `rpm_ms`, `tpm_ms` (when that was so); TTL two minutes,
    after which the buckets are full.
    """
    return bucket_prefix() + quota_id


def budget_prefix() -> str:
    """Common start of the budgets."""
    return f"{CONTROL_TAG}:budget:"


def budget_key(quota_id: str, period: str) -> str:
    """What a quota's period has used, reservations of running streams included. Owner: the Redis functions.

    HASH `tokens`, `micros` (millionths of money), `told` (1 once the soft budget was announced). TTL: the
    period's end and 40 days.
    """
    return f"{budget_prefix()}{quota_id}:{period}"


def usage_key() -> str:
    """Ended streams that the ledger has not stored yet. Owner: `settle` writes, the ledger deletes.

    STREAM, fields as `usage_events` says, no TTL and never trimmed: what is in it is billed.
    """
    return f"{CONTROL_TAG}:usage"


def usage_lock_key() -> str:
    """Who stores usage now. Owner: the ledger's task. STRING, TTL 30 s; a second one would only wait for the first."""
    return f"{usage_key()}:lock"


def usage_set_aside_key() -> str:
    """Ended streams that the ledger cannot read. Owner: the ledger; `manage.py usage_retry` moves them back.

    STREAM, fields as they were, and `entry` (their first id) and `problem`; no TTL and never trimmed: it is billed.
    """
    return f"{usage_key()}:set-aside"


def soft_limits_key() -> str:
    """Soft budgets that were passed and not announced yet. Owner: `settle` writes, Celery deletes.

    STREAM, fields `quota`, `period`, `micros`, `limit`.
    """
    return f"{CONTROL_TAG}:soft-limits"


# ---- drafts


def draft_bucket_key(tenant_id: str) -> str:
    """What a tenant may still have computed for drafts. Owner: `draft`.

    HASH `tokens` (what is left, a decimal fraction) and `tokens_ms` (when that was so); TTL as `bucket_key`.
    """
    return f"{CONTROL_TAG}:draft-bucket:{tenant_id}"


def drafts_key(tenant_id: str) -> str:
    """Drafts of a tenant that are being computed. Owner: `draft`.

    ZSET prefill id -> until when it is counted at most, Redis milliseconds; TTL that of the newest.
    """
    return f"{CONTROL_TAG}:drafts:{tenant_id}"


# ---- logs and delivery


def log_prefix(shard: int = 0) -> str:
    """Common start of all logs of a shard."""
    return f"{_log_tag(shard)}:log:"


def log_key(stream_id: str, shard: int = 0) -> str:
    """Token log.

    Owner: the stream's current owner. STREAM, ids `<epoch>-<seq>`, field `d` = msgpack `LogEntry`; TTL = tenant
    retention after the end.
    """
    return log_prefix(shard) + stream_id


def token_ids_prefix(shard: int = 0) -> str:
    """Common start of all token id arrays of a shard."""
    return f"{_log_tag(shard)}:ids:"


def token_ids_key(stream_id: str, shard: int = 0) -> str:
    """Generated token ids.

    Owner: the stream's worker; gateways never read it. STRING, little-endian uint32 each, TTL as the log.
    """
    return token_ids_prefix(shard) + stream_id


def readers_prefix(shard: int = 0) -> str:
    """Common start of the readers of all streams of a shard."""
    return f"{_log_tag(shard)}:read-by:"


def readers_key(stream_id: str, shard: int = 0) -> str:
    """Gateways that want a stream delivered.

    Owner: gateways. STRING, gateway incarnations with a space between them, TTL as the log.
    """
    return readers_prefix(shard) + stream_id


def delivery_prefix(shard: int = 0) -> str:
    """Common start of all delivery streams of a shard."""
    return f"{_log_tag(shard)}:gw:"


def delivery_key(gateway: str, shard: int = 0) -> str:
    """Deltas for one gateway.

    Owner: that gateway. STREAM, ids `1-<n>` without gaps, field `d` = msgpack list of `LogEntry`, at most ~8,192, TTL
    = lease.
    """
    return delivery_prefix(shard) + gateway


# ---- fleet


def workers_key() -> str:
    """Live workers.

    Owner: workers. HASH incarnation -> msgpack `WorkerInfo`; an incarnation without a lease is dead and is swept.
    """
    return f"{CONTROL_TAG}:workers"


def fleet_channel() -> str:
    """Pub/sub channel that says that `workers_key` changed; carries the incarnation."""
    return f"{CONTROL_TAG}:fleet:changed"


def model_assets_key(fingerprint: str) -> str:
    """Tokenizer, chat template and probes of a model.

    Owner: workers. STRING, msgpack `ModelAssets`, TTL 7 days, refreshed by every registration.
    """
    return f"{CONTROL_TAG}:model:{fingerprint}"


def prefix_warmth_key(prefill_id: str) -> str:
    """Where a prompt cache is warm, named as its prefills are.

    Owner: workers. HASH incarnation -> msgpack `PrefillReport` of the last prefill there; TTL a day from the last one.
    """
    return f"{CONTROL_TAG}:warm:{prefill_id}"


def prompt_cache_use_key(cache_id: str) -> str:
    """What a prompt cache was good for.

    Owner: workers. HASH `requests`, `hits` (those that found most of it computed), `tokens` (found) and
    `microseconds` (that computing these would have taken); TTL 90 days from the last request.
    """
    return f"{CONTROL_TAG}:prompt-cache:{cache_id}"


# ---- guardrails


def guard_policy_key(digest: str) -> str:
    """One version of a guardrail policy.

    Owner: the control plane. STRING, msgpack `GuardPolicy`, named by its content; TTL 30 days, set anew by every
    publication while it applies somewhere.
    """
    return f"{CONTROL_TAG}:guard:{digest}"


def interventions_key() -> str:
    """What guardrails did and the database does not know yet.

    Owner: gateways and workers write, a Celery task takes (as the ledger does: it deletes what it has committed).
    STREAM, field `d` = msgpack `Intervention`, at most ~100,000.
    """
    return f"{CONTROL_TAG}:interventions"


def interventions_lock_key() -> str:
    """Who stores interventions now. Owner: the Celery task. STRING, TTL 30 s."""
    return f"{interventions_key()}:lock"


def interventions_set_aside_key() -> str:
    """Interventions that cannot be read. Owner: the Celery task; `manage.py interventions_retry` moves them back.

    STREAM, field `d` as it was, and `entry` (its first id) and `problem`; at most 10,000.
    """
    return f"{interventions_key()}:set-aside"
