"""That what `deploy/` says of workers can be read, and is so."""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from apps.deployments.autoscale.enums import WorkloadKind
from apps.deployments.autoscale.executors.kubernetes import KubernetesExecutor, api_client
from apps.deployments.autoscale.executors.protocol import Victim
from headrace_worker.command import _parser
from headrace_worker.config import WorkerConfig
from tests.support.environment import REPOSITORY_ROOT
from tests.support.kubernetes_api import kubernetes_api

KUBERNETES, SYSTEMD = REPOSITORY_ROOT / "deploy/kubernetes", REPOSITORY_ROOT / "deploy/systemd"


def documents(name: str) -> dict[str, dict[str, Any]]:
    """By kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((KUBERNETES / name).read_text())}


def check_command(command: list[str]) -> None:
    assert command[:3] == [command[0], "-m", "headrace_worker"]
    assert command[0].endswith(".venv/bin/python")
    assert _parser().parse_args(command[3:]).deployment


def check_drain(environ: dict[str, str], killed_after: float) -> None:
    config = WorkerConfig.read("any", environ)
    assert config.drain_seconds == float(environ["HEADRACE_DRAIN_SECONDS"])
    assert killed_after >= config.drain_seconds + 15


def test_pods_run_the_worker_and_have_time_to_drain() -> None:
    pod = documents("worker.yaml")["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    check_command(container["command"])
    environ = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    check_drain(environ, pod["terminationGracePeriodSeconds"])


def test_the_role_allows_what_the_executor_does_and_no_more(tmp_path: Path) -> None:
    found = documents("autoscaler.yaml")
    allowed = {
        (group, resource, verb)
        for rule in found["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert found["RoleBinding"]["subjects"][0]["name"] == found["ServiceAccount"]["metadata"]["name"]

    replicas = {("headrace", kind, "worker"): 2 for kind in ("deployments", "statefulsets")}
    with kubernetes_api(tmp_path, replicas) as cluster:
        cluster.pods["headrace", "pod"] = {}
        for kind in WorkloadKind:
            executor = KubernetesExecutor(
                api_client(cluster.kubeconfig), kind=kind, namespace="headrace", name="worker", timeouts=(30.0, 60.0)
            )
            executor.scale_to(executor.current() - 1, [Victim("w", "pod", 1)])
        assert {used(request) for request in cluster.requests} == allowed


def used(request: str) -> tuple[str, str, str]:
    verb, path = request.split()
    match = re.fullmatch(
        r"/(?:api|apis/(?P<group>\w+))/v1/namespaces/headrace/(?P<kind>\w+)/[\w-]+(?P<sub>/scale)?", path
    )
    assert match is not None, request
    verbs = {"GET": "get", "PUT": "update", "PATCH": "patch"}
    return match["group"] or "", match["kind"] + (match["sub"] or ""), verbs[verb]


def test_units_run_the_worker_and_have_time_to_drain() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(SYSTEMD / "headrace-worker@.service")
    service = unit["Service"]
    check_command(service["ExecStart"].replace("${HEADRACE_DEPLOYMENT}", "my-model").split())
    name, _, value = service["Environment"].partition("=")
    check_drain({name: value}, float(service["TimeoutStopSec"]))
    assert service["Restart"] == "on-failure", "one that was told to end stays away"


@pytest.mark.parametrize(
    ("unit", "is_ours"),
    [("headrace-worker@12.service", True), ("headrace-worker@x.service", False), ("sshd.service", False)],
)
def test_polkit_rule_names_the_instances(unit: str, *, is_ours: bool) -> None:
    rule = (SYSTEMD / "49-headrace.rules").read_text()
    pattern = re.search(r"/(\^headrace-worker.*?\$)/\.test", rule)
    assert pattern is not None
    assert bool(re.match(pattern[1], unit)) is is_ours
