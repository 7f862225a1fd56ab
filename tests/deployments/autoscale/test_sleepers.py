"""Workers that sleep are none: not for bounds or capacity, nor in a replay; they are woken before others start."""

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pytest_django import Settings
from redis import Redis

from apps.deployments.autoscale.decide import decide
from apps.deployments.autoscale.enums import AutoscaleMode
from apps.deployments.autoscale.executors.protocol import least_loaded_first
from apps.deployments.autoscale.replay import replay
from apps.deployments.autoscale.services import autoscale_policy_create
from apps.deployments.autoscale.terms import Decision, PolicyTerms, Rule, Sample, ScalingState
from apps.deployments.models import AutoscalePolicy, ModelDeployment, ScalingDecision, ScalingSample
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.messages import Drain, Resume
from headrace_wire.supervisor_control import WorkersAsked, ask
from tests.conftest import Spawn
from tests.deployments.autoscale.fleet import START, TICK, Fleet
from tests.deployments.autoscale.test_decide import NOON, history
from tests.deployments.autoscale.test_replay import recorded

IDLE = 0.0


def decided(policy: PolicyTerms, samples: list[Sample], current: int, sleeping: int) -> Decision:
    return decide(policy, samples, NOON, ScalingState(current=current, sleeping=sleeping))


def test_the_fewest_are_woken_while_somebody_asks_and_sleep_while_nobody_does() -> None:
    policy = PolicyTerms(min_workers=2)
    used = decided(policy, history(60, 0.3), 1, 1)
    assert (used.target, used.rule, used.inputs["sleeping"]) == (2, Rule.MINIMUM, 1)
    assert decided(policy, history(60, IDLE, 0), 0, 2).rule is Rule.KEEP
    assert decided(policy, history(60, IDLE, 0), 0, 1).rule is Rule.MINIMUM, "with those that sleep there are too few"


def test_the_most_are_awake() -> None:
    policy = PolicyTerms(max_workers=2)
    assert decided(policy, history(300, 0.9), 1, 3).target == 2
    assert decided(policy, history(300, 0.9, 2), 2, 3).rule is Rule.KEEP
    assert decided(policy, history(300, 0.5, 3), 3, 1).rule is Rule.MAXIMUM


def test_sleepers_are_not_taken_for_workers_that_still_start() -> None:
    state = ScalingState(current=1, sleeping=2, changed_at=NOON - timedelta(seconds=400), has_grown=True)
    assert decide(PolicyTerms(), history(300, 0.9), NOON, state).rule is Rule.SCALE_OUT


def test_they_end_when_the_deployment_is_idle_and_wake_by_themselves_when_it_is_not() -> None:
    policy = PolicyTerms(min_workers=0)
    assert decided(policy, history(900, IDLE, 0), 0, 2).rule is Rule.IDLE
    assert decided(policy, history(600, IDLE, 0), 0, 2).rule is Rule.KEEP
    waits = [*history(600, IDLE, 0)[:-1], replace(history(0, IDLE, 0)[0], waiting=1)]
    assert decided(policy, waits, 0, 2).rule is Rule.KEEP
    assert decided(policy, waits, 0, 0).rule is Rule.WAKE_UP


def test_who_sleeps_goes_first() -> None:
    def info(name: str, state: WorkerState, started_at: float) -> WorkerInfo:
        return WorkerInfo(name, "tiny", "vllm", state, "here", 1, started_at)

    order = least_loaded_first([info("old", WorkerState.READY, 1), info("new", WorkerState.READY, 3),
                                info("asleep", WorkerState.SLEEPING, 2)])  # fmt: skip
    assert [one.incarnation for one in order] == ["asleep", "new", "old"]


def test_a_replay_has_neither_their_hours_nor_their_places() -> None:
    load = [replace(one, sleeping=3) for one in recorded(60, 0.5)]
    assert replay(PolicyTerms(), load) == replay(PolicyTerms(), recorded(60, 0.5))
    asleep = [replace(one, workers=0, sleeping=1, ready=0, running=0, places=0) for one in recorded(60, 0.0)]
    result = replay(PolicyTerms(min_workers=0), asleep)
    assert (result.recorded_hours, result.worker_hours, result.changes) == (0, 0, [])


# ---- ticks


@pytest.fixture
def fleet(live_redis: Redis) -> Fleet:
    return Fleet(live_redis)


@pytest.fixture
def supervisor(spawn: Spawn, tmp_path: Path, settings: Settings) -> Path:
    """A real supervisor that keeps three processes."""
    spawn([sys.executable, "-m", "tests.launcher.supervised", "control", str(tmp_path)], ready="listening")
    settings.HEADRACE_STATE_DIR = tmp_path
    ask(tmp_path, WorkersAsked("tiny", 3))
    return tmp_path


@pytest.fixture
def two_asleep(fleet: Fleet, supervisor: Path) -> list[int]:
    """One that is busy, two that sleep; returns their process ids."""
    pids = list(ask(supervisor, WorkersAsked("tiny")).pids)
    fleet.worker("busy", num_requests_running=9, pid=pids[0])
    for number in (1, 2):
        fleet.worker(f"asleep-{number}", state=WorkerState.SLEEPING, pid=pids[number])
    return pids


def policy_of(deployment: ModelDeployment, **values: float) -> None:
    policy = AutoscalePolicy(deployment=deployment, mode=AutoscaleMode.ON, **values)
    autoscale_policy_create(policy=policy)


def results() -> list[tuple[int, int, str, str]]:
    return list(ScalingDecision.objects.order_by("at").values_list("before", "target", "rule", "result"))


@pytest.mark.usefixtures("two_asleep")
def test_load_wakes_sleepers_before_it_starts_workers(
    fleet: Fleet, deployment: ModelDeployment, supervisor: Path
) -> None:
    policy_of(deployment, scale_out_seconds=60, scale_out_step=3, max_workers=6)
    fleet.tick(75)
    assert results() == [(1, 4, "scale_out", "done")]
    assert fleet.told("asleep-1") == fleet.told("asleep-2") == [Resume()]
    assert ask(supervisor, WorkersAsked("tiny")).wanted == 4, "one more beside the two that were woken"
    row = ScalingSample.objects.latest("at")
    assert (row.workers, row.sleeping, row.ready, row.places) == (1, 2, 1, 10)


@pytest.mark.usefixtures("two_asleep")
def test_nobody_starts_where_enough_can_be_woken(fleet: Fleet, deployment: ModelDeployment, supervisor: Path) -> None:
    policy_of(deployment, min_workers=2)
    fleet.tick()
    assert results() == [(1, 2, "minimum", "done")]
    assert [fleet.told(f"asleep-{number}") for number in (1, 2)].count([Resume()]) == 1
    assert ask(supervisor, WorkersAsked("tiny")).wanted == 3


def test_fewer_workers_are_without_those_that_sleep(
    fleet: Fleet, deployment: ModelDeployment, supervisor: Path, two_asleep: list[int]
) -> None:
    policy_of(deployment, min_workers=0, idle_seconds=60)
    fleet.worker("busy", state=WorkerState.SLEEPING, pid=two_asleep[0])
    while not fleet.tick():
        assert fleet.now < START + timedelta(seconds=8 * TICK)
    assert results() == [(3, 0, "idle", "decided")]
    for number, name in enumerate(("busy", "asleep-1", "asleep-2")):
        assert fleet.told(name) == [Drain("autoscale: 3 to 0 workers", 120.0, leave=False)]
        fleet.worker(name, state=WorkerState.DRAINING, pid=two_asleep[number])
    fleet.tick()
    assert results() == [(3, 0, "idle", "done")]
    assert ask(supervisor, WorkersAsked("tiny")).wanted == 0
