"""Workers of our own supervisor (`make up`), on the machine that this runs on."""

from collections.abc import Sequence
from pathlib import Path

from apps.deployments.autoscale.executors.protocol import ExecutorError, Trouble, Victim, least_loaded_first
from headrace_wire.fleet import WorkerInfo
from headrace_wire.supervisor_control import SupervisorAwayError, WorkersAsked, WorkersTold, ask


class SupervisorExecutor:
    """Asks over the socket in the state directory."""

    def __init__(self, state_dir: Path, deployment: str) -> None:
        self._state_dir = state_dir
        self._deployment = deployment

    def current(self) -> int:
        """Returns how many the supervisor keeps running."""
        return self._ask(WorkersAsked(self._deployment)).wanted

    def scale_to(self, count: int, victims: Sequence[Victim]) -> None:
        """Has it keep `count` running; victims are told by their process ids."""
        self._ask(WorkersAsked(self._deployment, count, tuple(victim.pid for victim in victims)))

    def leaving_order(self, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
        """It can end any."""
        return least_loaded_first(workers)

    def _ask(self, asked: WorkersAsked) -> WorkersTold:
        try:
            told = ask(self._state_dir, asked)
        except SupervisorAwayError as error:
            raise ExecutorError(Trouble.UNREACHABLE, str(error)) from error
        if told.error:
            raise ExecutorError(Trouble.REFUSED, told.error)
        return told
