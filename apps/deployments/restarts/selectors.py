"""Reads: which workers run older options than their deployment has."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from apps.deployments.enums import WorkerState
from apps.deployments.models import ModelDeployment, RollingRestart, Worker
from apps.deployments.restarts.enums import RestartState
from apps.deployments.selectors import deployment_config
from headrace_wire.engine_options import options_fingerprint
from headrace_wire.fleet import WorkerInfo
from headrace_wire.fleet import WorkerState as Told

_LIVE = (WorkerState.LOADING, WorkerState.READY, WorkerState.DRAINING, WorkerState.BROKEN)


@dataclass(frozen=True, slots=True)
class OptionsInUse:
    """How many of a deployment's live workers run what is configured now."""

    workers: int
    outdated: int


def wanted_options(deployment: ModelDeployment) -> str:
    """Returns the fingerprint of the options as they are stored now."""
    return options_fingerprint(deployment_config(deployment))


def options_in_use(*, deployments: Iterable[ModelDeployment]) -> Mapping[object, OptionsInUse]:
    """Returns, by the deployments' ids, what their workers run; one query. Workers that do not say count as present."""
    wanted = {deployment.pk: wanted_options(deployment) for deployment in deployments}
    rows = Worker.objects.filter(deployment__in=wanted, state__in=_LIVE).values_list("deployment_id", "options")
    counts = dict.fromkeys(wanted, (0, 0))
    for deployment_id, options in rows:
        workers, outdated = counts[deployment_id]
        counts[deployment_id] = (workers + 1, outdated + (options not in ("", wanted[deployment_id])))
    return {deployment_id: OptionsInUse(*count) for deployment_id, count in counts.items()}


def restart_running(*, deployment: ModelDeployment) -> RollingRestart | None:
    """Returns the restart that goes on, if there is one."""
    return RollingRestart.objects.filter(deployment=deployment, state=RestartState.RUNNING).first()


def restart_last(*, deployment: ModelDeployment) -> RollingRestart | None:
    """Returns the newest one."""
    return RollingRestart.objects.filter(deployment=deployment).first()


def process_of(info: WorkerInfo) -> str:
    """Returns what stays the same in a worker's process, whichever lease it lives by."""
    return f"{info.host}:{info.pid}:{info.started_at:.3f}"


def is_outdated(info: WorkerInfo, wanted: str) -> bool:
    """Returns whether a restart would give the worker other options; one that is broken takes them by itself."""
    return info.options not in ("", wanted) and info.state is not Told.BROKEN
