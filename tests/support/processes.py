"""Real child processes for tests: started, waited for, always ended by pid, their logs shown when a test fails."""

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace_launcher.parent_death import follow_parent
from tests.support.environment import REPOSITORY_ROOT, child_environment

PATIENCE_SECONDS = 120.0
"""For what takes a second on a machine that does nothing else."""
READ_SECONDS = 20.0
"""For the last lines of a process that has ended; its own children may hold the pipe for longer."""


_given: set[int] = set()
"""Ports that were free."""


class ProcessFailedError(Exception):
    """A process ended or stayed silent before it was ready. The message carries the end of its log."""


class Process:
    """A running child. A thread reads its stdout and stderr into `log`, so that it never blocks on a full pipe."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        name: str = "",
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
    ) -> None:
        self.name = name or Path(command[0]).name
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._eof = False
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ) if environ is not None else child_environment(),
            cwd=cwd,
            user=user,
            preexec_fn=follow_parent,  # noqa: PLW1509  only prctl, whose library is loaded already
        )
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"log of {self.name}")
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as lines:  # closed here: who stops it may not wait for a child that holds it open
            for line in lines:
                with self._changed:
                    self._lines.append(line.decode(errors="replace").rstrip())
                    self._changed.notify_all()
        with self._changed:
            self._eof = True
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status; None while it runs."""
        return self._popen.poll()

    @property
    def log(self) -> str:
        """Everything it has printed so far."""
        with self._changed:
            return "\n".join(self._lines)

    def wait_for_line(self, pattern: str, *, times: int = 1, timeout: float = PATIENCE_SECONDS) -> re.Match[str]:
        """Returns the first match of `pattern` in a line of its log, or the one of that number, waiting for it.

        Raises:
            ProcessFailedError: It ended, or `timeout` seconds went by, without such a line.
        """
        wanted, seen, found, deadline = re.compile(pattern), 0, 0, time.monotonic() + timeout
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    seen += 1
                    match = wanted.search(line)
                    found += match is not None
                    if match and found == times:
                        return match
                if self._eof or not self._changed.wait(deadline - time.monotonic()):
                    raise self._failure(f"no line like {pattern!r}")

    def wait_for_address(self, address: str | tuple[str, int], *, timeout: float = PATIENCE_SECONDS) -> None:
        """Returns once it accepts a connection: `address` is a unix socket's path or a host and port.

        Raises:
            ProcessFailedError: It ended, or `timeout` seconds went by.
        """
        family, deadline = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, time.monotonic() + timeout
        while True:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(address) == 0:
                    return
            with self._changed:  # its next line or its end is a good moment to look again
                if self._eof or time.monotonic() > deadline:
                    raise self._failure(f"nothing listens at {address}")
                self._changed.wait(0.02)

    def wait(self, *, timeout: float = PATIENCE_SECONDS) -> int:
        """Returns its exit status once it ended; the log is complete then."""
        status = self._popen.wait(timeout)
        self._reader.join(timeout=READ_SECONDS)
        return status

    def send_signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def stop(self, *, timeout: float = 10.0) -> None:
        """Ends it: SIGTERM, and SIGKILL after `timeout` seconds."""
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(timeout)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        self._reader.join(timeout=READ_SECONDS)

    def _failure(self, problem: str) -> ProcessFailedError:
        tail = "\n".join(self._lines[-40:])
        return ProcessFailedError(f"{self.name} (exit status {self._popen.poll()}): {problem}. Its log ends:\n{tail}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def run_to_end(command: Sequence[str | Path], environ: Mapping[str, str], *, timeout: float = 400.0) -> str:
    """Runs a command in the repository's root; returns its output.

    Raises:
        AssertionError: It failed; the message has its output.
    """
    with Process(command, environ=environ, cwd=REPOSITORY_ROOT) as process:
        status = process.wait(timeout=timeout)
        assert status == 0, f"{command} ended with {status}:\n{process.log}"
        return process.log


def free_port() -> int:
    """Returns a TCP port on 127.0.0.1 that nobody listened on a moment ago.

    Its server may take seconds to come: no other call returns the same one, here or in the other process of
    pytest-xdist, which takes the other half of all ports. (Linux gives odd ones first.)
    """
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _given and port // 2 % 2 == share % 2:
            _given.add(port)
            return port
