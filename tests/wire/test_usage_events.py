"""Usage events survive the way through Redis."""

from typing import Any

from redis import Redis

from headrace_wire import redis_keys
from headrace_wire.messages import FinishReason, StreamState
from headrace_wire.usage_events import UsageEvent, usage_event, usage_fields

FULL = UsageEvent(
    stream_id="strm-1",
    tenant_id="t",
    api_key_id="k",
    user_id="u",
    deployment_id="d",
    deployment="tiny",
    state=StreamState.CANCELLED,
    finish_reason=FinishReason.ABORT,
    prompt_tokens=7,
    cached_tokens=3,
    completion_tokens=5,
    cost_micros=11,
    admitted_ms=1_000,
    ended_ms=2_000,
    owner="worker-1",
)


def test_an_event_comes_back_as_it_was(live_redis: Redis) -> None:
    fields = list(map(str, usage_fields(FULL)))
    live_redis.xadd(redis_keys.usage_key(), dict(zip(fields[::2], fields[1::2], strict=True)))
    rows: Any = live_redis.xrange(redis_keys.usage_key())
    ((_, row),) = rows
    assert usage_event(row) == FULL


def test_missing_numbers_are_zero() -> None:
    short = {b"stream": b"strm-1", b"state": b"failed", b"finish": b"error"}
    assert usage_event(short).completion_tokens == 0
