"""Interventions for tests, written the way gateways and workers write them."""

from typing import Any

import msgspec
from redis import Redis

from headrace_wire import redis_keys
from headrace_wire.guard_policy import Action
from headrace_wire.interventions import Intervention, Outcome

NOON = 1_782_909_000.0
"""2026-07-01 12:30 UTC."""


def found(stream_id: str = "strm-1", **values: Any) -> Intervention:
    """A card number that was masked."""
    fields: dict[str, Any] = {
        "tenant_id": "t",
        "deployment": "tiny",
        "policy": "p",
        "policy_version": 1,
        "rule": "r",
        "rule_kind": "personal_data",
        "finding": "CREDIT_CARD",
        "action": Action.MASK,
        "outcome": Outcome.MASKED,
        "start": 10,
        "end": 26,
        "excerpt": "4…1 (16 characters)",
        "held_ms": 12.5,
        "occurred_at": NOON,
    }
    return Intervention(stream_id=stream_id, **{**fields, **values})


def write(redis: Redis, *interventions: Intervention) -> None:
    """Adds them to the stream that the collector reads."""
    for one in interventions:
        redis.xadd(redis_keys.interventions_key(), {"d": msgspec.msgpack.encode(one)})


def waiting(redis: Redis) -> int:
    return int(redis.xlen(redis_keys.interventions_key()))
