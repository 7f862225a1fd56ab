"""The executor that a policy names."""

from collections.abc import Sequence

from django.conf import settings

from apps.deployments.autoscale.enums import ExecutorKind, WorkloadKind
from apps.deployments.autoscale.executors.protocol import Executor
from apps.deployments.autoscale.executors.recommend import RecommendExecutor
from apps.deployments.autoscale.executors.supervisor import SupervisorExecutor
from apps.deployments.autoscale.executors.systemd import SystemdExecutor
from apps.deployments.models import AutoscalePolicy
from headrace_wire.fleet import WorkerInfo


def executor_of(policy: AutoscalePolicy, workers: Sequence[WorkerInfo]) -> Executor:
    """Returns the executor of a policy; `workers` are those of its deployment that are alive.

    Raises:
        ExecutorError: It cannot be reached with what this process knows.
    """
    match policy.executor:
        case ExecutorKind.SUPERVISOR:
            return SupervisorExecutor(settings.HEADRACE_STATE_DIR, policy.deployment.name)
        case ExecutorKind.SYSTEMD:
            return SystemdExecutor(policy.workload)
        case ExecutorKind.KUBERNETES:
            # A second of imports, which only those pay who use it.
            from apps.deployments.autoscale.executors.kubernetes import KubernetesExecutor, api_client  # noqa: PLC0415

            return KubernetesExecutor(
                api_client(settings.HEADRACE_KUBECONFIG),
                kind=WorkloadKind(policy.workload_kind),
                namespace=policy.namespace,
                name=policy.workload,
            )
        case _:
            return RecommendExecutor(workers)
