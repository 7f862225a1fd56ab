"""What is to be done next in a restart: decided from its row and from what workers say, without doing it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.translation import gettext as _

from apps.deployments.models import RollingRestart
from apps.deployments.restarts.selectors import is_outdated, process_of
from headrace_wire.fleet import WorkerInfo, WorkerState

SUCCESSOR_PATIENCE = timedelta(minutes=15)
"""From the order to end until a successor is ready: what runs may finish, and a model may be large."""

READY_PATIENCE = timedelta(minutes=15)
"""How long others may be missing before the next one ends."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done now."""


@dataclass(frozen=True, slots=True)
class Order:
    """Tell the worker to end, once more where it was told before: the first order may not have reached it."""

    worker: WorkerInfo


@dataclass(frozen=True, slots=True)
class Replaced:
    """The successor is ready."""


@dataclass(frozen=True, slots=True)
class Finish:
    """All workers run the present options."""


@dataclass(frozen=True, slots=True)
class Stop:
    """It cannot go on; the workers that are left serve as they did."""

    reason: str


Step = Wait | Order | Replaced | Finish | Stop


def next_step(restart: RollingRestart, workers: Mapping[str, WorkerInfo], wanted: str, now: datetime) -> Step:
    """Returns the next step; `workers` are the deployment's that live now, by incarnation."""
    if restart.current:
        return _of_current(restart, workers, now)
    ready = [info for info in workers.values() if info.state is WorkerState.READY]
    outdated = [info for info in workers.values() if is_outdated(info, wanted)]
    if not outdated:
        return Finish()
    if (broken := _broken(workers.values(), wanted)) is not None:
        return Stop(_("A worker cannot start with the new options: %s") % broken.last_error)
    candidates = [info for info in outdated if info.state is WorkerState.READY]
    if len(ready) < restart.size or not candidates:
        since = restart.current_since or restart.started_at
        if now - since > READY_PATIENCE:
            return Stop(
                _("Only %(ready)d of %(size)d workers are ready.") % {"ready": len(ready), "size": restart.size}
            )
        return Wait()
    return Order(min(candidates, key=lambda info: (info.num_streams, info.started_at)))


def _of_current(restart: RollingRestart, workers: Mapping[str, WorkerInfo], now: datetime) -> Step:
    since = restart.current_since or restart.started_at
    is_late = now - since > SUCCESSOR_PATIENCE
    leaving = workers.get(restart.current) or _same_process(restart, workers.values())
    if leaving is not None:
        if is_late:
            return Stop(_("The worker on %(host)s (%(pid)d) did not end.") % {"host": leaving.host, "pid": leaving.pid})
        return Wait() if leaving.is_leaving else Order(leaving)
    fresh = [info for info in workers.values() if process_of(info) not in restart.known]
    if any(info.state is WorkerState.READY for info in fresh):
        return Replaced()
    broken = next((info for info in fresh if info.state is WorkerState.BROKEN), None)
    if broken is not None:
        return Stop(_("The successor on %(host)s is broken: %(error)s") % {
            "host": broken.host, "error": broken.last_error or "-",
        })  # fmt: skip
    if is_late:
        return Stop(_("No successor was ready within %d minutes.") % (SUCCESSOR_PATIENCE.total_seconds() // 60))
    return Wait()


def _same_process(restart: RollingRestart, workers: Iterable[WorkerInfo]) -> WorkerInfo | None:
    """Return the worker that is to end under the name of a new lease: then the order has not reached it."""
    return next((info for info in workers if process_of(info) == restart.known[0]), None)


def _broken(workers: Iterable[WorkerInfo], wanted: str) -> WorkerInfo | None:
    return next((info for info in workers if info.state is WorkerState.BROKEN and info.options == wanted), None)
