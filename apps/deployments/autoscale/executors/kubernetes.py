"""Workers as pods of a Kubernetes Deployment or StatefulSet, by the scale subresource of apps/v1.

Pods drain on SIGTERM within their grace period. A Deployment is told by pod-deletion-cost which pods go first; a
StatefulSet always ends its highest ordinals, so these drain.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from apps.deployments.autoscale.enums import WorkloadKind
from apps.deployments.autoscale.executors.protocol import (
    ExecutorError,
    Trouble,
    Victim,
    least_loaded_first,
)
from headrace_wire.fleet import WorkerInfo

CONNECT_SECONDS, READ_SECONDS = 3.0, 10.0
ATTEMPTS = 5
"""Somebody else may write the same object between our read and our write."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_GOES_FIRST = "-1000"
_TROUBLES = {
    401: Trouble.FORBIDDEN,
    403: Trouble.FORBIDDEN,
    404: Trouble.NOT_FOUND,
    408: Trouble.TIMEOUT,
    409: Trouble.CONFLICT,
    504: Trouble.TIMEOUT,
}


def api_client(kubeconfig: Path | None) -> client.ApiClient:
    """Returns a client of the cluster that `kubeconfig` names, or that this process is a pod of.

    Raises:
        ExecutorError: Neither can be used.
    """
    configuration = client.Configuration()
    try:
        if kubeconfig is not None:
            config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        where = "HEADRACE_KUBECONFIG" if kubeconfig is not None else "The service account of this pod"
        raise ExecutorError(Trouble.UNREACHABLE, f"{where} cannot be used: {error}") from error
    configuration.retries = urllib3.Retry(0)  # the next tick is the retry
    return client.ApiClient(configuration)


class KubernetesExecutor:
    """Reads and writes the scale of one workload."""

    def __init__(
        self,
        api: client.ApiClient,
        *,
        kind: WorkloadKind,
        namespace: str,
        name: str,
        timeouts: tuple[float, float] = (CONNECT_SECONDS, READ_SECONDS),
    ) -> None:
        self._apps = client.AppsV1Api(api)
        self._core = client.CoreV1Api(api)
        self._kind = kind
        self._where = {"name": name, "namespace": namespace}
        self._timeouts = timeouts
        of = "stateful_set" if kind == WorkloadKind.STATEFUL_SET else "deployment"
        self._read: Callable[..., Any] = getattr(self._apps, f"read_namespaced_{of}_scale")
        self._replace: Callable[..., Any] = getattr(self._apps, f"replace_namespaced_{of}_scale")

    def current(self) -> int:
        """Returns the replicas that are asked for."""
        return _replicas(self._call("read the scale of", self._read, **self._where))

    def scale_to(self, count: int, victims: Sequence[Victim]) -> None:
        """Writes the replicas under the version that was read; after a conflict, reads and writes again."""
        if self._kind == WorkloadKind.DEPLOYMENT:
            for victim in victims:
                self._mark(victim)
        for attempt in range(ATTEMPTS):
            scale = self._call("read the scale of", self._read, **self._where)
            if _replicas(scale) == count:
                return
            scale.spec = client.V1ScaleSpec(replicas=count)
            try:
                self._call("scale", self._replace, body=scale, **self._where)
            except ExecutorError as error:
                if error.trouble is not Trouble.CONFLICT or attempt == ATTEMPTS - 1:
                    raise
            else:
                return

    def leaving_order(self, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
        """Any pod of a Deployment; of a StatefulSet, the highest ordinals."""
        if self._kind == WorkloadKind.DEPLOYMENT:
            return least_loaded_first(workers)
        return sorted(workers, key=lambda one: _ordinal(one.host), reverse=True)

    def _mark(self, victim: Victim) -> None:
        body = {"metadata": {"annotations": {DELETION_COST: _GOES_FIRST}}}
        try:
            self._call(
                "mark a pod of",
                self._core.patch_namespaced_pod,
                name=victim.host,
                namespace=self._where["namespace"],
                body=body,
            )
        except ExecutorError as error:
            if error.trouble is not Trouble.NOT_FOUND:  # gone already: so much the better
                raise

    def _call(self, doing: str, call: Callable[..., Any], **arguments: Any) -> Any:  # noqa: ANN401  # ships no types
        what = f"{self._kind.label} {self._where['namespace']}/{self._where['name']}"
        try:
            return call(**arguments, _request_timeout=self._timeouts)
        except ApiException as error:
            trouble = _TROUBLES.get(error.status or 0, Trouble.REFUSED)
            message = f"Kubernetes would not {doing} {what}: {error.status} {_said(error)}"
            raise ExecutorError(trouble, message) from error
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, urllib3.exceptions.NewConnectionError):
                raise ExecutorError(Trouble.UNREACHABLE, "The Kubernetes API server cannot be reached.") from error
            if isinstance(reason, urllib3.exceptions.TimeoutError):
                message = f"The Kubernetes API server did not answer in time when asked to {doing} {what}."
                raise ExecutorError(Trouble.TIMEOUT, message) from error
            message = f"The Kubernetes API server cannot be used: {type(reason).__name__}."
            raise ExecutorError(Trouble.UNREACHABLE, message) from error


def _replicas(scale: Any) -> int:  # noqa: ANN401  # a V1Scale; the client ships no types
    return int(scale.spec.replicas or 0) if scale.spec is not None else 0


def _said(error: ApiException) -> str:
    """The message of the Status object that a refusal carries."""
    try:
        return str(json.loads(error.body)["message"])[:500]
    except (KeyError, TypeError, ValueError):
        return str(error.reason)


def _ordinal(pod: str) -> int:
    match = re.search(r"-(\d+)\Z", pod)
    return int(match[1]) if match else -1
