"""Quotas and the ledger."""

from headrace_wire.redis_keys.tags import CONTROL_TAG


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


def settlements_set_aside_key() -> str:
    """Ended streams that could not be settled. Owner: `set_aside` writes, `manage.py settlements_retry` settles them.

    STREAM, fields as `lua/set_aside.lua` writes them; no TTL and never trimmed: it is billed.
    """
    return f"{CONTROL_TAG}:settlements:set-aside"


def soft_limits_key() -> str:
    """Soft budgets that were passed and not announced yet. Owner: `settle` writes, Celery deletes.

    STREAM, fields `quota`, `period`, `micros`, `limit`.
    """
    return f"{CONTROL_TAG}:soft-limits"
