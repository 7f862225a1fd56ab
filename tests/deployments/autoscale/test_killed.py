"""Celery is killed while Kubernetes has its call: the step is neither lost nor made twice.

A real Celery worker decides, on the test's own database and Redis, and hangs in the executor's write; it gets SIGKILL
there. The ticks that follow are at times of the test's own.
"""

import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from threading import Event
from urllib.parse import quote

import pytest
from django.db import connection
from pytest_django import Settings
from redis import Redis

from apps.deployments.autoscale.enums import AutoscaleMode, ExecutorKind
from apps.deployments.autoscale.services import autoscale_policy_create
from apps.deployments.autoscale.tick import autoscale_tick
from apps.deployments.models import AutoscalePolicy, ModelDeployment, ScalingDecision
from tests.conftest import Spawn
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.kubernetes_api import Cluster, kubernetes_api
from tests.support.processes import run_to_end

KEY = ("headrace", "deployments", "worker")
WRITE = "PUT /apis/apps/v1/namespaces/headrace/deployments/worker/scale"
TICK = timedelta(seconds=15)
CELERY = (sys.executable, "-m", "celery", "-A", "headrace")
PATIENCE_SECONDS = 120.0


class Hold:
    """Keeps the first write, before it takes effect or after it, until it is let go."""

    def __init__(self) -> None:
        self.has_come, self.may_go = Event(), Event()

    def __call__(self) -> None:
        if not self.has_come.is_set():
            self.has_come.set()
            self.may_go.wait()


@pytest.fixture
def hold() -> Iterator[Hold]:
    one = Hold()
    yield one
    one.may_go.set()


@pytest.fixture
def cluster(tmp_path: Path, hold: Hold) -> Iterator[Cluster]:
    """A deployment of one pod."""
    with kubernetes_api(tmp_path, {KEY: 1}) as running:
        yield running
        hold.may_go.set()


@pytest.fixture
def environ(live_redis: Redis, redis_url: str, cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """Of a Celery on the test's own stores."""
    return child_environment(
        REDIS_URL=redis_url,
        DATABASE_URL=database_url(),
        HEADRACE_SETTINGS="development",
        DJANGO_SETTINGS_MODULE="headrace.settings.development",
        HEADRACE_STATE_DIR=str(tmp_path),
        HEADRACE_SECRET_KEY="of the tests alone",
        HEADRACE_KUBECONFIG=str(cluster.kubeconfig),
    )


def database_url() -> str:
    named = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{named['NAME']}"
    who = f"{quote(named['USER'], safe='')}:{quote(named['PASSWORD'], safe='')}"
    return f"postgresql://{who}@/{named['NAME']}?host={quote(named['HOST'], safe='')}&port={named['PORT']}"


def results() -> list[tuple[int, int, str, str]]:
    return list(ScalingDecision.objects.order_by("at").values_list("before", "target", "rule", "result"))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_written", [False, True], ids=["before it is written", "after it was written"])
def test_celery_that_is_killed_within_the_call_neither_loses_the_step_nor_doubles_it(
    deployment: ModelDeployment,
    cluster: Cluster,
    hold: Hold,
    environ: dict[str, str],
    spawn: Spawn,
    settings: Settings,
    is_written: bool,
) -> None:
    settings.HEADRACE_KUBECONFIG = cluster.kubeconfig
    autoscale_policy_create(
        policy=AutoscalePolicy(
            deployment=deployment,
            mode=AutoscaleMode.ON,
            min_workers=3,
            executor=ExecutorKind.KUBERNETES,
            workload="worker",
            namespace="headrace",
        )
    )
    setattr(cluster, "after_update" if is_written else "before_update", hold)
    celery = spawn(
        [*CELERY, "worker", "--pool", "solo", "--loglevel", "WARNING"],
        name="celery", environ=environ, cwd=REPOSITORY_ROOT, ready="celery@|ready", timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    run_to_end([*CELERY, "call", "deployments.autoscale_tick"], environ, timeout=PATIENCE_SECONDS)
    assert hold.has_come.wait(PATIENCE_SECONDS), celery.log
    celery.send_signal(signal.SIGKILL)
    celery.wait()
    decision = ScalingDecision.objects.get()
    assert results() == [(1, 3, "minimum", "decided")]
    assert cluster.replicas[KEY] == (3 if is_written else 1)

    assert autoscale_tick(now=decision.at + TICK) == 0
    assert results() == [(1, 3, "minimum", "decided")], "its process may live still"
    assert decision.lease_until is not None
    after = decision.lease_until + TICK
    assert autoscale_tick(now=after) == 0, "no second decision beside it"
    assert (results(), cluster.replicas[KEY]) == ([(1, 3, "minimum", "done")], 3)

    hold.may_go.set()  # the killed one's write arrives at last, of a version that is no longer the newest
    while not is_written and cluster.answered.get(timeout=PATIENCE_SECONDS) != HTTPStatus.CONFLICT:
        pass
    for tick in range(1, 5):
        assert autoscale_tick(now=after + tick * TICK) == 0
    assert (results(), cluster.replicas[KEY]) == ([(1, 3, "minimum", "done")], 3)
    assert cluster.requests.count(WRITE) == (1 if is_written else 2)
