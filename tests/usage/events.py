"""Usage events for tests, written the way `settle` writes them."""

from datetime import UTC, datetime
from typing import Any

from redis import Redis

from headrace_wire import redis_keys
from headrace_wire.messages import FinishReason, StreamState
from headrace_wire.usage_events import UsageEvent, usage_fields

NOON = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)


def milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def event(stream_id: str, *, admitted_at: datetime = NOON, **values: Any) -> UsageEvent:
    """A finished stream of 10 tokens in, 4 of them cached, and 5 out, for 7 millionths."""
    fields: dict[str, Any] = {
        "tenant_id": "t",
        "deployment": "tiny",
        "state": StreamState.FINISHED,
        "finish_reason": FinishReason.STOP,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "cost_micros": 7,
        "admitted_ms": milliseconds(admitted_at),
        "ended_ms": milliseconds(admitted_at) + 1500,
    }
    return UsageEvent(stream_id=stream_id, **{**fields, **values})


def fields_of(of: UsageEvent) -> dict[Any, Any]:
    flat = usage_fields(of)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def write(redis: Redis, *events: UsageEvent) -> None:
    """Adds them to the stream that the ledger reads."""
    for one in events:
        redis.xadd(redis_keys.usage_key(), fields_of(one))


def waiting(redis: Redis) -> int:
    return int(redis.xlen(redis_keys.usage_key()))
