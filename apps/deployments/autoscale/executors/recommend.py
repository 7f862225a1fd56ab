"""Nobody: what is decided is a recommendation."""

from collections.abc import Sequence

from apps.deployments.autoscale.executors.protocol import Victim, least_loaded_first
from headrace_wire.fleet import WorkerInfo


class RecommendExecutor:
    """Counts who is there, and does nothing."""

    def __init__(self, workers: Sequence[WorkerInfo]) -> None:
        self._workers = workers

    def current(self) -> int:
        """Returns how many are alive."""
        return len(self._workers)

    def scale_to(self, count: int, victims: Sequence[Victim]) -> None:
        """Leaves it to people."""

    def leaving_order(self, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
        """What they should end first."""
        return least_loaded_first(workers)
