"""Guardrail policies and what they did."""

from headrace_wire.redis_keys.tags import CONTROL_TAG


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
