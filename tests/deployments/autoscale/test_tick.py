"""Ticks against a real Redis, database, supervisor socket and Kubernetes stand-in, at times of the test's own."""

import sys
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from django.db import connection
from pytest_django import Settings
from redis import Redis

from apps.deployments.autoscale.enums import AutoscaleMode, DecisionResult, ExecutorKind
from apps.deployments.autoscale.services import (
    autoscale_policy_create,
    autoscale_policy_delete,
    autoscale_policy_update,
)
from apps.deployments.autoscale.tick import (
    DECISIONS_KEPT,
    SAMPLES_KEPT,
    autoscale_clean,
    autoscale_tick,
    autoscale_wake,
)
from apps.deployments.models import AutoscalePolicy, ModelDeployment, ScalingDecision, ScalingSample
from apps.deployments.services import deployment_create
from headrace_wire import redis_keys
from headrace_wire.fleet import WorkerState
from headrace_wire.messages import Drain, Resume
from headrace_wire.supervisor_control import WorkersAsked, ask
from tests.conftest import Spawn
from tests.deployments.autoscale.fleet import START, TICK, Fleet
from tests.support.kubernetes_api import kubernetes_api


@pytest.fixture
def fleet(live_redis: Redis) -> Fleet:
    return Fleet(live_redis)


@pytest.fixture
def supervisor(spawn: Spawn, tmp_path: Path, settings: Settings) -> Path:
    """A real supervisor whose workers sleep."""
    command = [sys.executable, "-m", "tests.launcher.supervised", "control", str(tmp_path)]
    spawn(command, name="control", ready="listening")
    settings.HEADRACE_STATE_DIR = tmp_path
    return tmp_path


def wanted(folder: Path) -> int:
    return ask(folder, WorkersAsked("tiny")).wanted


def policy_of(deployment: ModelDeployment, **values: Any) -> AutoscalePolicy:
    return autoscale_policy_create(
        policy=AutoscalePolicy(**{"deployment": deployment, "mode": AutoscaleMode.ON, **values})
    )


def results() -> list[tuple[int, int, str, str]]:
    rows = ScalingDecision.objects.order_by("at")
    return list(rows.values_list("before", "target", "rule", "result"))


def test_a_sample_says_what_was_measured(fleet: Fleet, deployment: ModelDeployment) -> None:
    policy_of(deployment, mode=AutoscaleMode.OFF)
    fleet.worker("a", num_requests_running=4, num_requests_held=1, kv_cache_usage=0.5)
    fleet.worker("b", num_requests_running=2, num_requests_waiting=1, kv_cache_usage=0.1)
    fleet.worker("c", state=WorkerState.LOADING)
    fleet.worker("d", state=WorkerState.DRAINING, num_requests_running=9)
    fleet.worker("e", deployment="another")
    fleet.tick(30, claims=30, place_ms=2000.0)
    fleet.waiting("s1", "s2", "s3")
    fleet.redis.sadd(redis_keys.parked_here_key("tiny"), "s3")
    fleet.tick(claims=28, place_ms=2000.0)
    row = ScalingSample.objects.latest("at")
    assert (row.workers, row.ready, row.running, row.waiting, row.places) == (3, 2, 8, 2, 20)
    assert row.requests_per_second == pytest.approx((30 + 28 + 2) / 30)
    assert row.worker_capacity == pytest.approx(5.0), "ten places, two seconds each"
    assert row.kv_usage == pytest.approx(0.3)
    assert (row.queue_p95, row.ttft_p95, row.target, row.rule) == (None, None, None, "")
    assert row.at == START + timedelta(seconds=30)


def test_shadow_decides_and_does_nothing(fleet: Fleet, deployment: ModelDeployment, supervisor: Path) -> None:
    policy_of(deployment, mode=AutoscaleMode.SHADOW, max_workers=9, scale_out_seconds=60.0)
    ask(supervisor, WorkersAsked("tiny", 1))
    fleet.worker("a", num_requests_running=9)
    assert fleet.tick(75) == 1
    assert results() == [(1, 3, "scale_out", "shadow")]
    assert wanted(supervisor) == 1
    assert fleet.tick(60) == 0, "as if it had been done"


def test_load_brings_workers_and_each_step_is_explained(
    fleet: Fleet, deployment: ModelDeployment, supervisor: Path
) -> None:
    policy_of(deployment, scale_out_seconds=60.0, cooldown_seconds=30.0)
    fleet.worker("a", num_requests_running=9)
    assert fleet.tick() == 1
    assert results() == [(0, 1, "minimum", "done")]
    assert wanted(supervisor) == 1
    fleet.tick(120)
    assert results()[1:] == [(1, 3, "scale_out", "done")]
    assert wanted(supervisor) == 3
    decision = ScalingDecision.objects.latest("at")
    assert decision.reason == "Above 80% for 60 s, now 90% (requests)."
    assert decision.inputs["loads"]["requests"] == 0.9
    assert ScalingSample.objects.latest("at").rule == "starting"


def test_two_beats_make_one_step(fleet: Fleet, deployment: ModelDeployment, supervisor: Path) -> None:
    policy_of(deployment, min_workers=2, max_workers=9)
    assert [autoscale_tick(now=START + timedelta(seconds=second)) for second in (0, 1, 14)] == [1, 0, 0]
    assert ScalingSample.objects.count() == 1
    assert results() == [(0, 2, "minimum", "done")]


@pytest.mark.django_db(transaction=True)
def test_two_beats_at_once_make_one_step(fleet: Fleet, deployment: ModelDeployment, supervisor: Path) -> None:
    policy_of(deployment, min_workers=2, max_workers=9)
    barrier, made = Barrier(4), []

    def beat() -> None:
        barrier.wait()
        try:
            made.append(autoscale_tick(now=START))
        finally:
            connection.close()

    threads = [Thread(target=beat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [0, 0, 0, 1]
    assert results() == [(0, 2, "minimum", "done")]
    assert ScalingSample.objects.count() == 1


def drained_pair(fleet: Fleet, deployment: ModelDeployment, supervisor: Path) -> tuple[AutoscalePolicy, list[int]]:
    """Two idle workers that run for real, until the decision that one is to go."""
    policy = policy_of(deployment, drain_seconds=60.0, scale_in_seconds=60.0, idle_seconds=60.0)
    pids = list(ask(supervisor, WorkersAsked("tiny", 2)).pids)
    fleet.worker("a", num_requests_running=2, pid=pids[0])
    fleet.worker("b", num_requests_running=1, pid=pids[1])
    while not fleet.tick():
        assert fleet.now < START + timedelta(seconds=120)
    assert results() == [(2, 1, "scale_in", "decided")]
    return policy, pids


def test_who_has_least_to_do_drains_first_and_ends_when_nothing_is_left(
    fleet: Fleet, deployment: ModelDeployment, supervisor: Path
) -> None:
    _, pids = drained_pair(fleet, deployment, supervisor)
    assert fleet.told("b") == [Drain("autoscale: 2 to 1 workers", 60.0, leave=False)]
    assert fleet.told("a") == []
    assert wanted(supervisor) == 2

    fleet.worker("b", state=WorkerState.DRAINING, num_requests_running=1, pid=pids[1])
    fleet.tick()
    assert wanted(supervisor) == 2, "an answer is not finished"
    fleet.worker("b", state=WorkerState.DRAINING, pid=pids[1])
    fleet.tick()
    assert ask(supervisor, WorkersAsked("tiny")).pids == (pids[0],)
    assert results() == [(2, 1, "scale_in", "done")]


def test_a_drain_ends_with_its_time(fleet: Fleet, deployment: ModelDeployment, supervisor: Path) -> None:
    drained_pair(fleet, deployment, supervisor)
    fleet.worker("b", state=WorkerState.DRAINING, num_requests_running=1)
    until = ScalingDecision.objects.get().drain_until
    assert until is not None
    fleet.now = until - timedelta(seconds=TICK)
    fleet.tick()
    assert wanted(supervisor) == 2
    fleet.tick()
    assert wanted(supervisor) == 1


def test_load_that_comes_back_stops_a_drain(fleet: Fleet, deployment: ModelDeployment, supervisor: Path) -> None:
    drained_pair(fleet, deployment, supervisor)
    fleet.worker("b", state=WorkerState.DRAINING, num_requests_running=1)
    fleet.worker("a", num_requests_running=9)
    fleet.tick()
    assert results() == [(2, 1, "scale_in", "withdrawn")]
    assert fleet.told("b")[1:] == [Resume()]
    assert wanted(supervisor) == 2


@pytest.mark.parametrize("how", ["deleted", "off"])
def test_a_drain_ends_with_its_policy(fleet: Fleet, deployment: ModelDeployment, supervisor: Path, how: str) -> None:
    policy, _ = drained_pair(fleet, deployment, supervisor)
    if how == "deleted":
        autoscale_policy_delete(policy=policy)
    else:
        policy.mode = AutoscaleMode.OFF
        autoscale_policy_update(policy=policy)
    fleet.tick()
    assert results() == [(2, 1, "scale_in", "withdrawn")]
    assert fleet.told("b")[1:] == [Resume()]


def test_what_a_killed_process_left_is_finished_after_its_lease(
    fleet: Fleet, deployment: ModelDeployment, supervisor: Path
) -> None:
    policy_of(deployment)
    fleet.tick()
    ScalingDecision.objects.update(
        result=DecisionResult.DECIDED, ended_at=None, target=2, lease_until=START + timedelta(seconds=2 * TICK)
    )
    assert fleet.tick() == 0
    assert wanted(supervisor) == 1, "its process may live still"
    assert fleet.tick(30) == 0, "no second decision beside it"
    assert wanted(supervisor) == 2
    assert results() == [(0, 2, "minimum", "done")]


def test_what_was_left_too_long_is_not_done_any_more(
    fleet: Fleet, deployment: ModelDeployment, supervisor: Path
) -> None:
    policy_of(deployment)
    fleet.tick()
    ScalingDecision.objects.update(result=DecisionResult.DECIDED, ended_at=None, target=4)
    fleet.now += timedelta(seconds=9 * TICK)
    fleet.tick()
    assert results() == [(0, 4, "minimum", "expired")]
    assert wanted(supervisor) == 1


def test_a_failure_is_recorded_and_tried_again_later(
    fleet: Fleet, deployment: ModelDeployment, settings: Settings, tmp_path: Path
) -> None:
    settings.HEADRACE_STATE_DIR = tmp_path
    policy = policy_of(deployment)
    assert fleet.tick(60) == 1
    assert results() == [(0, 1, "minimum", "failed")]
    decision = ScalingDecision.objects.get()
    assert decision.result_text.startswith("No supervisor of make up can be reached here")
    policy.refresh_from_db()
    assert policy.last_error == decision.result_text
    assert fleet.tick() == 1


def test_a_request_wakes_a_deployment_within_seconds(
    fleet: Fleet, deployment: ModelDeployment, supervisor: Path
) -> None:
    policy_of(deployment, min_workers=0)
    fleet.tick(30)
    assert autoscale_wake(now=fleet.now) == 0
    fleet.waiting("stream")
    assert autoscale_wake(now=fleet.now + timedelta(seconds=3)) == 1
    assert [autoscale_wake(now=fleet.now + timedelta(seconds=second)) for second in (4, 6, 9)] == [0, 0, 0]
    assert results() == [(0, 1, "wake_up", "done")]
    assert ScalingDecision.objects.get().reason == "No worker runs, and 1 wait for one."
    assert wanted(supervisor) == 1


def test_requests_that_a_circuit_breaker_turns_away_wake_it_too(
    fleet: Fleet, deployment: ModelDeployment, supervisor: Path
) -> None:
    """They wait in no queue: a fallback serves them, or nobody."""
    policy_of(deployment, min_workers=0)
    fleet.tick(30)
    key, now_ms = redis_keys.breaker_key(deployment.pk.hex), int(fleet.now.timestamp() * 1000)
    fleet.redis.hset(key, mapping={"state": "open", "reason": "absent", "since": now_ms, "asked": now_ms - 120_000})
    assert autoscale_wake(now=fleet.now + timedelta(seconds=3)) == 0, "that was two minutes ago"
    fleet.redis.hset(key, "asked", now_ms)
    assert autoscale_wake(now=fleet.now + timedelta(seconds=6)) == 1
    assert results() == [(0, 1, "wake_up", "done")]
    assert wanted(supervisor) == 1


def test_what_loads_first_is_started_first(fleet: Fleet, deployment: ModelDeployment) -> None:
    later = deployment_create(deployment=ModelDeployment(name="later", model="m", preload_priority=200))
    first = deployment_create(deployment=ModelDeployment(name="urgent", model="m", preload_priority=1))
    for one in (later, deployment, first):
        policy_of(one, executor=ExecutorKind.RECOMMEND, min_workers=1)
    assert fleet.tick() == 3
    names = ScalingDecision.objects.order_by("pk").values_list("deployment__name", flat=True)
    assert list(names) == ["urgent", "tiny", "later"]


def test_recommendations_are_only_that(fleet: Fleet, deployment: ModelDeployment) -> None:
    policy_of(deployment, executor=ExecutorKind.RECOMMEND, min_workers=2)
    fleet.worker("a")
    fleet.tick()
    assert results() == [(1, 2, "minimum", "recommended")]
    assert fleet.told("a") == []


def test_kubernetes_refusals_stand_on_the_decision(
    fleet: Fleet, deployment: ModelDeployment, settings: Settings, tmp_path: Path
) -> None:
    key = ("headrace", "deployments", "worker")
    with kubernetes_api(tmp_path, {key: 1}) as cluster:
        settings.HEADRACE_KUBECONFIG = cluster.kubeconfig
        policy_of(deployment, min_workers=2, executor=ExecutorKind.KUBERNETES, workload="worker", namespace="headrace")
        cluster.forbidden = {"update"}
        fleet.tick()
        assert results() == [(1, 2, "minimum", "failed")]
        assert 'cannot update resource "deployments/scale"' in ScalingDecision.objects.get().result_text
        cluster.forbidden = set()
        fleet.tick(75)
        assert results()[1:] == [(1, 2, "minimum", "done")]
        assert cluster.replicas[key] == 2


def test_old_rows_go(fleet: Fleet, deployment: ModelDeployment) -> None:
    policy_of(deployment, executor=ExecutorKind.RECOMMEND, min_workers=2)
    fleet.tick()
    assert autoscale_clean(now=START + SAMPLES_KEPT) == 0
    assert autoscale_clean(now=START + SAMPLES_KEPT + timedelta(seconds=1)) == 1
    assert autoscale_clean(now=START + DECISIONS_KEPT + timedelta(seconds=1)) == 1
