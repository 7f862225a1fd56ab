"""Workers as instances of a systemd template unit, `headrace-worker@1.service` and so on, on this machine."""

import re
import subprocess
from collections.abc import Sequence

from apps.deployments.autoscale.executors.protocol import ExecutorError, Trouble, Victim, least_loaded_first
from headrace_wire.fleet import WorkerInfo

COMMAND_SECONDS = 15.0
_RUNNING = frozenset({"active", "activating", "reloading"})
_DENIED = re.compile(r"access denied|authentication required|permission denied|not authorized", re.IGNORECASE)


class SystemdExecutor:
    """Starts and stops instances with `systemctl`, which answers at once (`--no-block`) and lets them drain.

    Whoever runs Celery needs the right to do so, by a polkit rule (see docs/autoscale.md).
    """

    def __init__(self, template: str, *, seconds: float = COMMAND_SECONDS) -> None:
        self._template = template
        self._seconds = seconds

    def current(self) -> int:
        """Returns how many instances run or are starting."""
        return len(self._instances())

    def scale_to(self, count: int, victims: Sequence[Victim]) -> None:
        """Starts the lowest free numbers, or stops the victims' instances, then the highest numbers."""
        running = self._instances()
        if len(running) < count:
            free = (number for number in range(1, count + len(running) + 1) if number not in running)
            self._systemctl("start", "--no-block", *(self._unit(next(free)) for _ in range(count - len(running))))
        elif len(running) > count:
            pids = self._main_pids(running)
            chosen = {victim.pid for victim in victims}
            order = sorted(running, key=lambda number: (pids.get(number) not in chosen, -number))
            leaving = order[: len(running) - count]
            self._systemctl("stop", "--no-block", *(self._unit(number) for number in leaving))

    def leaving_order(self, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
        """It can end any."""
        return least_loaded_first(workers)

    def _unit(self, number: int) -> str:
        return f"{self._template}@{number}.service"

    def _instances(self) -> set[int]:
        pattern = f"{self._template}@*.service"
        listed = self._systemctl("list-units", "--all", "--plain", "--no-legend", "--no-pager", "--full", pattern)
        found = set()
        for line in listed.splitlines():
            words = line.split()
            match = re.fullmatch(rf"{re.escape(self._template)}@(\d+)\.service", words[0]) if len(words) > 3 else None
            if match and words[2] in _RUNNING:
                found.add(int(match[1]))
        return found

    def _main_pids(self, numbers: set[int]) -> dict[int, int]:
        units = [self._unit(number) for number in sorted(numbers)]
        shown = self._systemctl("show", "--property=MainPID", "--value", *units)
        pids = [int(line) for line in shown.split() if line.isdecimal()]
        return dict(zip(sorted(numbers), pids, strict=False))

    def _systemctl(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                ["systemctl", *arguments],
                capture_output=True,
                text=True,
                timeout=self._seconds,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError as error:
            raise ExecutorError(Trouble.UNREACHABLE, "There is no systemctl on this machine.") from error
        except subprocess.TimeoutExpired as error:
            message = f"systemctl {arguments[0]} did not answer within {self._seconds:g} s."
            raise ExecutorError(Trouble.TIMEOUT, message) from error
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.strip()[-500:] or f"exit status {done.returncode}"
        trouble = Trouble.REFUSED
        if _DENIED.search(said):
            trouble = Trouble.FORBIDDEN
        elif done.returncode == 5 or "not found" in said:
            trouble = Trouble.NOT_FOUND
        raise ExecutorError(trouble, f"systemctl {arguments[0]}: {said}")
