"""The Kubernetes executor with the official client against a server that speaks the API's schema."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.deployments.autoscale.enums import WorkloadKind
from apps.deployments.autoscale.executors.kubernetes import DELETION_COST, KubernetesExecutor, api_client
from apps.deployments.autoscale.executors.protocol import ExecutorError, Trouble, Victim
from headrace_wire.fleet import WorkerInfo, WorkerState
from tests.support.kubernetes_api import Cluster, kubernetes_api

DEPLOYMENT, STATEFUL = ("headrace", "deployments", "worker"), ("headrace", "statefulsets", "worker")
READ = "GET /apis/apps/v1/namespaces/headrace/deployments/worker/scale"
WRITE = READ.replace("GET", "PUT")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with kubernetes_api(tmp_path, {DEPLOYMENT: 1, STATEFUL: 3}) as running:
        yield running


def executor(
    cluster: Cluster,
    kind: WorkloadKind = WorkloadKind.DEPLOYMENT,
    name: str = "worker",
    timeouts: tuple[float, float] = (5.0, 30.0),
) -> KubernetesExecutor:
    api = api_client(cluster.kubeconfig)
    return KubernetesExecutor(api, kind=kind, namespace="headrace", name=name, timeouts=timeouts)


def test_scale_is_read_and_written(cluster: Cluster) -> None:
    workers = executor(cluster)
    assert workers.current() == 1
    workers.scale_to(3, [])
    assert cluster.replicas[DEPLOYMENT] == workers.current() == 3
    before = len(cluster.requests)
    workers.scale_to(3, [])
    assert cluster.requests[before:] == [READ], "an absolute number: nothing is written twice"
    workers.scale_to(0, [])
    assert (cluster.replicas[DEPLOYMENT], workers.current()) == (0, 0)


def test_stateful_set_ends_its_highest_ordinals_so_these_drain(cluster: Cluster) -> None:
    workers = executor(cluster, WorkloadKind.STATEFUL_SET)
    pods = [info(f"worker-{number}", running=10 - number) for number in (0, 10, 2)]
    assert [one.host for one in workers.leaving_order(pods)] == ["worker-10", "worker-2", "worker-0"]
    workers.scale_to(2, [Victim("w", "worker-2", 1)])
    assert cluster.replicas == {DEPLOYMENT: 1, STATEFUL: 2}


def test_pods_of_a_deployment_that_drained_go_first(cluster: Cluster) -> None:
    cluster.replicas[DEPLOYMENT] = 3
    cluster.pods = {("headrace", name): {} for name in ("worker-a", "worker-b")}
    workers = executor(cluster)
    pods = [info("worker-a", running=3), info("worker-b", running=1), info("worker-c", running=2)]
    assert [one.host for one in workers.leaving_order(pods)] == ["worker-b", "worker-c", "worker-a"]
    workers.scale_to(1, [Victim("b", "worker-b", 1), Victim("gone", "worker-gone", 1)])
    assert cluster.pods == {("headrace", "worker-a"): {}, ("headrace", "worker-b"): {DELETION_COST: "-1000"}}
    assert cluster.replicas[DEPLOYMENT] == 1


def test_conflict_is_read_and_written_again(cluster: Cluster) -> None:
    others = iter([5, 6])

    def interfere() -> None:
        if (other := next(others, None)) is not None:
            cluster.scale_by_hand(DEPLOYMENT, other)

    cluster.before_update = interfere
    executor(cluster).scale_to(3, [])
    assert cluster.replicas[DEPLOYMENT] == 3
    assert cluster.requests == [READ, WRITE] * 3


def test_conflict_without_end_is_an_error(cluster: Cluster) -> None:
    cluster.before_update = lambda: cluster.scale_by_hand(DEPLOYMENT, 7)
    with pytest.raises(ExecutorError, match="409 Operation cannot be fulfilled") as caught:
        executor(cluster).scale_to(3, [])
    assert caught.value.trouble is Trouble.CONFLICT
    assert cluster.requests.count(WRITE) == 5


@pytest.mark.parametrize("verb", ["get", "update"])
def test_forbidden_says_what_is_missing(cluster: Cluster, verb: str) -> None:
    cluster.forbidden = {verb}
    with pytest.raises(
        ExecutorError, match=rf'cannot {verb} resource "deployments/scale" in API group "apps"'
    ) as caught:
        executor(cluster).scale_to(3, [])
    assert caught.value.trouble is Trouble.FORBIDDEN
    assert cluster.replicas[DEPLOYMENT] == 1


def test_unknown_workload_and_wrong_token_are_said(cluster: Cluster) -> None:
    with pytest.raises(ExecutorError, match=r'404 deployments\.apps "worker-2" not found') as caught:
        executor(cluster, name="worker-2").current()
    assert caught.value.trouble is Trouble.NOT_FOUND
    cluster.kubeconfig.write_text(cluster.kubeconfig.read_text().replace("of-the-autoscaler", "of-somebody"))
    with pytest.raises(ExecutorError, match="401 Unauthorized") as caught:
        executor(cluster).current()
    assert caught.value.trouble is Trouble.FORBIDDEN


def test_time_out_of_the_server_and_of_the_wire(cluster: Cluster) -> None:
    cluster.is_slow = True
    with pytest.raises(ExecutorError, match="504 Timeout: request did not complete") as caught:
        executor(cluster).scale_to(3, [])
    assert caught.value.trouble is Trouble.TIMEOUT
    cluster.is_slow, cluster.is_silent = False, True
    with pytest.raises(ExecutorError, match="did not answer in time when asked to read the scale") as caught:
        executor(cluster, timeouts=(5.0, 0.2)).scale_to(3, [])
    assert caught.value.trouble is Trouble.TIMEOUT
    assert cluster.replicas[DEPLOYMENT] == 1


def test_nobody_there_and_no_configuration(cluster: Cluster, tmp_path: Path, port: int) -> None:
    there = cluster.kubeconfig.read_text()
    cluster.kubeconfig.write_text(there.replace(cluster.url, f"https://127.0.0.1:{port}"))
    with pytest.raises(ExecutorError, match="cannot be reached") as caught:
        executor(cluster).current()
    assert caught.value.trouble is Trouble.UNREACHABLE
    with pytest.raises(ExecutorError, match="HEADRACE_KUBECONFIG cannot be used"):
        api_client(tmp_path / "none")
    with pytest.raises(ExecutorError, match="service account of this pod cannot be used"):
        api_client(None)


def info(host: str, *, running: int) -> WorkerInfo:
    return WorkerInfo(host, "tiny", "vllm", WorkerState.READY, host, 1, 0.0, num_requests_running=running)
