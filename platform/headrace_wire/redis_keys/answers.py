"""Answers that were kept, and prompts that are computed while they are typed."""

from headrace_wire.redis_keys.tags import CONTROL_TAG


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


def kept_alike_prefix(tenant_id: str) -> str:
    """Common start of a tenant's questions that have kept answers, by what must be the same in those that are compared.

    Owner: the Redis functions. HASH by partition, an HMAC: name of the answer -> the question, as
    `headrace_guard.judges.likeness` packs it; TTL two hours.
    """
    return f"{CONTROL_TAG}:kept-alike:{tenant_id}:"


def kept_partitions_key(tenant_id: str) -> str:
    """Where a tenant's questions are. Owner: the Redis functions. HASH answer's name -> partition; TTL two hours."""
    return f"{CONTROL_TAG}:kept-partitions:{tenant_id}"


def kept_answers_keys(tenant_id: str) -> list[str]:
    """Return the keys of all that is kept for a tenant, in the order in which the functions take them."""
    return [
        kept_answer_prefix(tenant_id),
        kept_answers_used_key(tenant_id),
        kept_answers_ending_key(tenant_id),
        kept_answers_sizes_key(tenant_id),
        kept_alike_prefix(tenant_id),
        kept_partitions_key(tenant_id),
    ]


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


def coming_key(stream_id: str) -> str:
    """Those of them whose gateways do not read it yet.

    Owner: `lua/_riders.lua`; their gateways delete. HASH rider's stream id -> Unix ms of its admission, TTL a minute.
    """
    return f"{CONTROL_TAG}:coming:{stream_id}"


def finished_answers_key() -> str:
    """Finished streams whose answer is to be kept. Owner: `settle` writes, gateways take. LIST of ids; TTL a minute."""
    return f"{CONTROL_TAG}:finished-answers"


def draft_bucket_key(tenant_id: str) -> str:
    """What a tenant may still have computed for drafts. Owner: `draft`.

    HASH `tokens` (what is left, a decimal fraction) and `tokens_ms` (when that was so); TTL as `bucket_key`.
    """
    return f"{CONTROL_TAG}:draft-bucket:{tenant_id}"


def open_drafts_key(tenant_id: str) -> str:
    """Drafts of a tenant whose prompt was not sent yet, where there are several gateways. Owner: `lua/_drafts.lua`.

    HASH of a prefix (`prefix_hashes`, 8 bytes) -> ids of its prefills, a space behind each; TTL that of the newest.
    """
    return f"{CONTROL_TAG}:open-drafts:{tenant_id}"


def open_drafts_ending_key(tenant_id: str) -> str:
    """Until when such drafts may be open. Owner: `lua/_drafts.lua`.

    ZSET prefix and prefill's id -> Redis milliseconds; TTL that of the newest.
    """
    return f"{CONTROL_TAG}:drafts-ending:{tenant_id}"


def drafts_key(tenant_id: str) -> str:
    """Drafts of a tenant that are being computed. Owner: `draft`.

    ZSET prefill id -> until when it is counted at most, Redis milliseconds; TTL that of the newest.
    """
    return f"{CONTROL_TAG}:drafts:{tenant_id}"
