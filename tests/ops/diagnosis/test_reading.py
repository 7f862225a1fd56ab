"""What a diagnosis knows of the fleet: from samples, over the time that they are kept."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from apps.deployments.models import ModelDeployment
from apps.ops.diagnosis.observations import Fleet
from apps.ops.diagnosis.reading import observation_of
from apps.ops.latency.samples import fleet_sample_take
from apps.ops.latency.scopes import TimeRange, floor_to
from apps.tenants.live_state import call_function
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState

pytestmark = pytest.mark.django_db

SLOT, MINUTE = timedelta(seconds=10), timedelta(minutes=1)
NOW = floor_to(datetime.now(UTC), MINUTE) - timedelta(minutes=30)


@pytest.fixture(autouse=True)
def redis(live_redis: Redis, deployment: ModelDeployment) -> Redis:
    assert deployment.name == "tiny"
    return live_redis


def sample(redis: Redis, at: datetime, **values: Any) -> None:
    """Do what a worker does each second, and what Celery does each ten."""
    call_function("enlist", [redis_keys.incarnations_key(), redis_keys.control_key("w")], ["w", 600_000])
    worker = WorkerInfo("w", "tiny", "vllm", WorkerState.READY, "h", 1, 1.0, **values)
    redis.hset(redis_keys.workers_key(), "w", codec.encode(worker))
    fleet_sample_take(now=at)


def fleet(start: datetime, end: datetime) -> Fleet:
    return observation_of("tiny", TimeRange(start, end, SLOT)).fleet


def test_how_full_memory_was_is_known_of_both_times(redis: Redis) -> None:
    for number, usage in enumerate([0.5, 0.6, 0.95, 0.93]):
        sample(redis, NOW + number * SLOT, memory_usage=usage)
    assert fleet(NOW, NOW + 2 * SLOT).memory_usage == 0.6
    assert fleet(NOW + 2 * SLOT, NOW + 4 * SLOT).memory_usage == 0.95
    assert fleet(NOW - MINUTE, NOW).memory_usage is None


def test_the_pace_of_a_request_does_not_swing_with_how_many_there_are(redis: Redis) -> None:
    tokens, before = 0, 0
    for number, running in enumerate([2, 8, 8, 1, 1, 6, 6, 2]):
        tokens += 25 * (before + running)
        before = running
        sample(redis, NOW + number * SLOT, num_requests_running=running, tokens_generated=tokens)
    assert fleet(NOW, NOW + MINUTE + 2 * SLOT).swing < 0.01


def test_an_engine_that_is_slow_now_and_then_swings(redis: Redis) -> None:
    tokens = 0
    for number, made in enumerate([0, 1000, 1000, 200, 200, 1000, 1000, 200]):
        tokens += made
        sample(redis, NOW + number * SLOT, num_requests_running=4, tokens_generated=tokens)
    assert fleet(NOW, NOW + MINUTE + 2 * SLOT).swing > 0.5
