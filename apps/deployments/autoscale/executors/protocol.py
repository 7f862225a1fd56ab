"""What every executor can do."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from headrace_wire.fleet import WorkerInfo, WorkerState


class Trouble(StrEnum):
    """Why an executor did nothing."""

    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


class ExecutorError(Exception):
    """It could not be done. The message says what is to be done about it, and names no secret."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class Victim:
    """A worker that is to end; it has drained."""

    incarnation: str
    host: str
    pid: int
    was_draining: bool = False
    """By somebody else's order."""


class Executor(Protocol):
    """Runs the workers of one deployment. Every call may be repeated: counts are absolute."""

    def current(self) -> int:
        """Returns how many workers are to run by what was asked of it last.

        Raises:
            ExecutorError: It cannot be asked.
        """
        ...

    def scale_to(self, count: int, victims: Sequence[Victim]) -> None:
        """Has `count` workers run; where some are too many, `victims` go first, as far as it can choose.

        Raises:
            ExecutorError: It was not done, or not all of it.
        """
        ...

    def leaving_order(self, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
        """Returns the workers in the order in which they would go."""
        ...


def least_loaded_first(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Returns the order in which the fewest answers are disturbed; who sleeps first, of equals the youngest."""
    return sorted(
        workers,
        key=lambda one: (
            one.state is not WorkerState.SLEEPING,
            one.num_requests_running + one.num_requests_waiting + one.num_requests_held,
            one.kv_cache_usage,
            -one.started_at,
        ),
    )
