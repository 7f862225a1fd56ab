from typing import Any

import pytest
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.utils import timezone
from redis import Redis

from apps.deployments.enums import WorkerState
from apps.deployments.fleet_mirror import KEPT_AFTER_END, workers_sync
from apps.deployments.models import ModelDeployment, Worker
from apps.deployments.services import deployment_create, deployment_update
from apps.deployments.tasks import workers_sync_task, workers_warm_up_task
from apps.deployments.warm_up import warm_ups_due, workers_warm_up
from apps.tenants.live_state import call_function
from apps.tenants.ui_events import FLEET_GROUP
from headrace_wire import codec, fleet, redis_keys
from headrace_wire.messages import WarmUp

LEASE_MS = 60_000


def register(redis: Redis, incarnation: str, **values: Any) -> None:
    """What a worker does: takes a lease, says who it is."""
    keys = [redis_keys.incarnations_key(), redis_keys.control_key(incarnation)]
    call_function("enlist", keys, [incarnation, LEASE_MS])
    report(redis, incarnation, **values)


def report(redis: Redis, incarnation: str, **values: Any) -> None:
    info = fleet.WorkerInfo(
        **{
            "incarnation": incarnation,
            "deployment": "tiny",
            "engine": "vllm",
            "state": fleet.WorkerState.READY,
            "host": "node-1",
            "pid": 4711,
            "started_at": 1_700_000_000.0,
            **values,
        }
    )
    redis.hset(redis_keys.workers_key(), incarnation, codec.encode(info))


def expire(redis: Redis, incarnation: str) -> None:
    redis.zadd(redis_keys.incarnations_key(), {incarnation: 1})


def states() -> dict[str, str]:
    return dict(Worker.objects.values_list("incarnation", "state"))


def test_a_worker_appears_changes_and_is_lost(live_redis: Redis, deployment: ModelDeployment) -> None:
    register(live_redis, "worker-1", state=fleet.WorkerState.LOADING)
    assert workers_sync() == 1
    worker = Worker.objects.get()
    assert (worker.deployment, worker.state, worker.host, worker.pid) == (deployment, "loading", "node-1", 4711)
    assert worker.started_at.timestamp() == 1_700_000_000.0

    report(live_redis, "worker-1", num_requests_running=3, kv_cache_usage=0.5)
    assert workers_sync() == 1
    assert workers_sync() == 0
    worker.refresh_from_db()
    assert (worker.state, worker.num_requests_running, worker.kv_cache_usage) == ("ready", 3, 0.5)

    expire(live_redis, "worker-1")
    assert workers_sync() == 1
    worker.refresh_from_db()
    assert (worker.state, worker.num_requests_running) == (WorkerState.LOST, 0)
    assert worker.ended_at is not None
    assert live_redis.hgetall(redis_keys.workers_key()) == {}
    assert workers_sync() == 0


def test_a_worker_that_drains_is_seen_to_and_has_ended_not_got_lost(
    live_redis: Redis, deployment: ModelDeployment
) -> None:
    register(live_redis, "worker-1", num_requests_running=2)
    workers_sync()
    report(live_redis, "worker-1", state=fleet.WorkerState.DRAINING, num_requests_running=2)
    assert workers_sync() == 1
    assert states() == {"worker-1": "draining"}
    live_redis.hdel(redis_keys.workers_key(), "worker-1")
    assert workers_sync() == 1
    worker = Worker.objects.get()
    assert (worker.state, worker.num_requests_running) == (WorkerState.ENDED, 0)
    assert worker.ended_at is not None
    expire(live_redis, "worker-1")
    assert workers_sync() == 0
    assert states() == {"worker-1": "ended"}


def test_a_worker_of_an_unknown_deployment_is_shown(live_redis: Redis, db: None) -> None:
    register(live_redis, "worker-1", deployment="not-configured")
    workers_sync()
    worker = Worker.objects.get()
    assert (worker.deployment, worker.deployment_name) == (None, "not-configured")


def test_a_worker_that_waits_for_its_configuration_hides_nobody(live_redis: Redis, deployment: ModelDeployment) -> None:
    """It cannot say yet which engine it will have."""
    register(live_redis, "worker-1", engine="", deployment="not-there-yet", state=fleet.WorkerState.LOADING)
    register(live_redis, "worker-2")
    assert workers_sync() == 2
    assert states() == {"worker-1": "loading", "worker-2": "ready"}
    report(live_redis, "worker-1")
    workers_sync()
    assert Worker.objects.get(incarnation="worker-1").engine == "vllm"


def test_one_unreadable_registration_hides_no_other(live_redis: Redis, deployment: ModelDeployment) -> None:
    register(live_redis, "worker-1")
    register(live_redis, "worker-2")
    live_redis.hset(redis_keys.workers_key(), "worker-2", b"\xc1broken")
    workers_sync()
    assert states() == {"worker-1": "ready"}


def test_an_engines_refusal_shows_on_the_deployment_until_one_is_ready(
    live_redis: Redis, deployment: ModelDeployment
) -> None:
    register(live_redis, "worker-1", state=fleet.WorkerState.BROKEN, last_error="ValueError: no such dtype")
    workers_sync()
    deployment.refresh_from_db()
    assert deployment.last_error == "ValueError: no such dtype"

    register(live_redis, "worker-2")
    workers_sync()
    assert ModelDeployment.objects.get().last_error, "one ready worker does not mend a broken one"

    expire(live_redis, "worker-1")
    workers_sync()
    assert not ModelDeployment.objects.get().last_error


def test_open_pages_are_told_of_changes_only(live_redis: Redis, deployment: ModelDeployment) -> None:
    layer = get_channel_layer()
    assert layer is not None
    channel = async_to_sync(layer.new_channel)()
    async_to_sync(layer.group_add)(FLEET_GROUP, channel)

    register(live_redis, "worker-1")
    workers_sync()
    workers_sync()
    expire(live_redis, "worker-1")
    workers_sync()

    told = [async_to_sync(layer.receive)(channel) for _ in range(2)]
    assert [message["data"] for message in told] == [
        {"workers": {"worker-1": "ready"}},
        {"workers": {"worker-1": "lost"}},
    ]
    assert {(message["type"], message["event"]) for message in told} == {("ui.event", "worker.changed")}


def test_rows_of_ended_workers_go_after_a_while(live_redis: Redis, deployment: ModelDeployment) -> None:
    register(live_redis, "worker-1")
    workers_sync()
    expire(live_redis, "worker-1")
    workers_sync()
    Worker.objects.update(ended_at=timezone.now() - KEPT_AFTER_END)
    workers_sync()
    assert not Worker.objects.exists()


def test_only_idle_ready_workers_are_asked_to_warm_up(live_redis: Redis, deployment: ModelDeployment) -> None:
    register(live_redis, "idle")
    register(live_redis, "busy", num_requests_running=1)
    register(live_redis, "loading", state=fleet.WorkerState.LOADING)
    workers_sync_task()
    assert workers_warm_up_task() == 1

    def told(incarnation: str) -> list[Any]:
        entries: Any = live_redis.xrange(redis_keys.control_key(incarnation))
        return [codec.decode_control(fields[b"d"]) for _, fields in entries if fields[b"d"]]

    assert told("idle") == [WarmUp(300.0)]
    assert told("busy") == told("loading") == []
    assert workers_warm_up(workers=Worker.objects.all()) == 1
    assert told("idle")[1:] == [WarmUp(0.0)], "at once"


def test_a_deployment_that_is_not_to_be_warmed_is_left_alone(live_redis: Redis, deployment: ModelDeployment) -> None:
    deployment.warm_up_seconds = 0
    deployment_update(deployment=deployment)
    register(live_redis, "idle")
    workers_sync_task()
    assert workers_warm_up_task() == 0


def test_workers_of_what_loads_first_are_asked_first(live_redis: Redis, deployment: ModelDeployment) -> None:
    deployment_create(deployment=ModelDeployment(name="important", model="m", preload_priority=1))
    register(live_redis, "a")
    register(live_redis, "z", deployment="important")
    workers_sync_task()
    assert warm_ups_due() == [("z", 300.0), ("a", 300.0)]
    assert workers_warm_up_task() == 2


def test_a_worker_that_is_gone_is_not_told(live_redis: Redis, deployment: ModelDeployment) -> None:
    register(live_redis, "worker-1")
    workers_sync()
    live_redis.delete(redis_keys.control_key("worker-1"))
    assert workers_warm_up() == 0


@pytest.mark.parametrize("count", [1, 20])
def test_mirroring_takes_a_fixed_number_of_queries(
    live_redis: Redis, deployment: ModelDeployment, django_assert_max_num_queries: Any, count: int
) -> None:
    for number in range(count):
        register(live_redis, f"worker-{number}")
    with django_assert_max_num_queries(9):
        assert workers_sync() == count


def test_a_quarantine_is_seen_until_it_is_over(live_redis: Redis, deployment: ModelDeployment) -> None:
    register(
        live_redis,
        "worker-1",
        state=fleet.WorkerState.BROKEN,
        quarantined_at=1_700_000_100.0,
        engine_failures=6,
        last_error="Quarantined: there is no GPU.",
    )
    workers_sync()
    worker = Worker.objects.get()
    assert worker.quarantined_at is not None
    assert (worker.quarantined_at.timestamp(), worker.engine_failures) == (1_700_000_100.0, 6)
    deployment.refresh_from_db()
    assert "there is no GPU" in deployment.last_error
    report(live_redis, "worker-1", state=fleet.WorkerState.READY)
    workers_sync()
    again = Worker.objects.get()
    assert (again.quarantined_at, again.engine_failures) == (None, 0)
