"""Samples of the fleet: taken once a slot, summed up by minute and hour, read as points."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from apps.deployments.models import ModelDeployment
from apps.ops.enums import FleetSpan
from apps.ops.latency.fleet_figures import NAMES
from apps.ops.latency.fleet_rows import KEPT, fleet_expire, fleet_points, fleet_roll_up
from apps.ops.latency.samples import fleet_sample_take
from apps.ops.latency.scopes import FleetPoint, LatencyScope, TimeRange, floor_to
from apps.ops.latency.selectors import fleet_series
from apps.ops.models import FleetSample
from apps.ops.tasks import fleet_sample_task
from apps.tenants.live_state import call_function
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import GpuReading, WorkerInfo, WorkerState

pytestmark = pytest.mark.django_db

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
NOW = floor_to(datetime.now(UTC), HOUR)
"""Samples are kept for two hours by Redis' own clock."""
GPU = GpuReading(0.5, 0.25, 1000, 1500.0, 300.0, 4000)


@pytest.fixture(autouse=True)
def redis(live_redis: Redis, deployment: ModelDeployment) -> Redis:
    assert deployment.name == "tiny"
    return live_redis


def register(redis: Redis, name: str, **values: Any) -> None:
    """Do what a worker does each second."""
    keys = [redis_keys.incarnations_key(), redis_keys.control_key(name)]
    call_function("enlist", keys, [name, 600_000])
    info = {"deployment": "tiny", "engine": "vllm", "state": WorkerState.READY, "host": "h", "pid": 1, **values}
    redis.hset(redis_keys.workers_key(), name, codec.encode(WorkerInfo(name, started_at=1.0, **info)))


def point_of(points: list[FleetPoint]) -> FleetPoint:
    (point,) = points
    return point


def over(start: datetime, end: datetime, step: timedelta = MINUTE) -> TimeRange:
    return TimeRange(start, end, step)


def test_two_beats_take_one_sample_of_a_slot(redis: Redis) -> None:
    register(redis, "w1", num_requests_running=3)
    assert fleet_sample_take(now=NOW)
    register(redis, "w1", num_requests_running=7)
    assert not fleet_sample_take(now=NOW + timedelta(seconds=9))
    assert fleet_sample_take(now=NOW + timedelta(seconds=10))
    assert point_of(fleet_points("tiny", None, over(NOW, NOW + MINUTE))).running == 5


def test_a_deployment_is_its_workers_and_its_queue(redis: Redis) -> None:
    register(
        redis, "w1", num_requests_running=3, num_requests_held=2, num_requests_spilled=1, kv_cache_usage=0.2,
        rss_bytes=100, gpu=GPU,
    )  # fmt: skip
    register(redis, "w2", num_requests_running=4, kv_cache_usage=0.6, state=WorkerState.DRAINING)
    redis.sadd(redis_keys.waiting_key("tiny"), "s1", "s2")
    redis.zadd(redis_keys.suspended_key(), {"s3": 1, "s4": 1, "gone": 1})
    for stream, name in ("s3", "tiny"), ("s4", "other"):
        redis.hset(redis_keys.stream_key(stream), "deployment", name)
    fleet_sample_take(now=NOW)
    point = point_of(fleet_series(LatencyScope(deployment="tiny"), over(NOW, NOW + MINUTE)))
    assert (point.workers, point.running, point.held, point.spilled) == (1, 7, 2, 1)
    assert (point.waiting, point.waiting_most, point.suspended) == (2, 2, 1)
    assert [point.kv_cache_usage, point.kv_cache_usage_most] == pytest.approx([0.4, 0.6])
    assert (point.rss_bytes, point.gpu_memory_bytes, point.gpu_power_watts) == (100, 1000, 300)
    assert (point.gpu_utilization, point.gpu_bandwidth, point.gpu_clock_mhz) == (0.5, 0.25, 1500)
    assert point.gpu_memory_usage_most == 0.25
    one = point_of(fleet_series(LatencyScope(worker="w2"), over(NOW, NOW + MINUTE)))
    assert (one.running, one.waiting, one.rss_bytes, one.gpu_utilization) == (4, 0, None, None)
    assert fleet_series(LatencyScope(deployment="other", worker="w2"), over(NOW, NOW + MINUTE)) == []


def test_rates_are_differences_between_samples(redis: Redis) -> None:
    for step in range(4):
        at = NOW + timedelta(seconds=10 * step)
        prompts = 100 * step if step < 3 else 200  # none has ended in the last ten seconds
        register(
            redis, "w1", tokens_generated=500 * step, prompt_tokens=prompts, cached_tokens=prompts // 4,
            preemptions=step * step,
        )  # fmt: skip
        fleet_sample_take(now=at)
    points = fleet_points("tiny", "w1", over(NOW, NOW + MINUTE, timedelta(seconds=10)))
    assert [point.tokens for point in points] == [0, 50, 50, 50], "of the first there is nothing to compare with"
    assert [point.prefix_hit_rate for point in points] == [None, 0.25, 0.25, None]
    assert [point.preemptions for point in points] == [None, 0.1, pytest.approx(0.3), 0.5]


def fill(redis: Redis, minutes: int) -> None:
    for minute in range(minutes):
        register(redis, "w1", num_requests_running=minute, tokens_generated=600 * minute, kv_cache_usage=minute / 100)
        redis.sadd(redis_keys.waiting_key("tiny"), f"s{minute}")
        fleet_sample_take(now=NOW + minute * MINUTE)


def rows(span: FleetSpan) -> list[dict[str, Any]]:
    return list(FleetSample.objects.filter(span=span).order_by("at", "worker").values("at", "worker", *NAMES))


def test_minutes_and_hours_are_stored_once_however_often_it_runs(redis: Redis) -> None:
    fill(redis, 62)
    assert fleet_roll_up(now=NOW + 61 * MINUTE) > 0
    assert len(rows(FleetSpan.MINUTE)) == 61 * 2
    deployment, worker = rows(FleetSpan.HOUR)
    assert (worker["worker"], worker["at"], worker["running"]) == ("w1", NOW, pytest.approx(29.5))
    assert (deployment["waiting"], deployment["waiting_most"]) == (pytest.approx(30.5), 60)
    assert deployment["kv_cache_usage_most"] == pytest.approx(0.59)
    before = rows(FleetSpan.MINUTE), rows(FleetSpan.HOUR)
    assert fleet_roll_up(now=NOW + 61 * MINUTE) == 0
    assert (rows(FleetSpan.MINUTE), rows(FleetSpan.HOUR)) == before


def test_points_are_the_same_from_samples_and_from_rows(redis: Redis) -> None:
    fill(redis, 50)
    whole = over(NOW, NOW + HOUR)
    live = fleet_points("tiny", None, whole)
    fleet_roll_up(now=NOW + 30 * MINUTE)
    assert len(rows(FleetSpan.MINUTE)) == 60
    assert fleet_points("tiny", None, whole) == live
    ten = fleet_points(None, None, over(NOW, NOW + HOUR, 10 * MINUTE))
    assert [point.running for point in ten] == [pytest.approx(4.5 + 10 * step) for step in range(5)]
    assert [point.waiting_most for point in ten] == [10, 20, 30, 40, 50]


def test_old_rows_go() -> None:
    for span, kept in KEPT.items():
        for at in (NOW - kept - HOUR, NOW - kept + HOUR):
            FleetSample.objects.create(span=span, at=at, deployment="tiny")
    assert fleet_expire(now=NOW) == 2
    assert FleetSample.objects.count() == 2


def test_the_task_runs(redis: Redis) -> None:
    register(redis, "w1")
    assert fleet_sample_task()


def test_an_hour_tells_how_long_a_worker_was_there(redis: Redis) -> None:
    for minute in range(61):
        register(redis, "w1")
        if minute < 15:
            register(redis, "w2", state=WorkerState.LOADING)
        else:
            redis.hdel(redis_keys.workers_key(), "w2")
        fleet_sample_take(now=NOW + minute * MINUTE)
    fleet_roll_up(now=NOW + 61 * MINUTE)
    hours = {row["worker"]: row for row in rows(FleetSpan.HOUR)}
    assert {name: row["registered"] for name, row in hours.items()} == pytest.approx({"": 1.25, "w1": 1.0, "w2": 0.25})
    assert {name: row["workers"] for name, row in hours.items()} == pytest.approx({"": 1.0, "w1": 1.0, "w2": 0.0})
    ten = fleet_points("tiny", None, over(NOW, NOW + HOUR, 10 * MINUTE))
    assert [point.registered for point in ten] == pytest.approx([2.0, 1.5, 1.0, 1.0, 1.0, 1.0])
