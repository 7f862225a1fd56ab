"""One place in the stack for one process after another: started, killed, frozen, drained."""

import asyncio
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace_launcher.embedded_redis import EmbeddedRedis
from tests.support.environment import REPOSITORY_ROOT
from tests.support.processes import Process

START_SECONDS = 180.0
_INCARNATION = re.compile(r"enlisted as (\S+)")


class Member:
    """Processes must be started from the main thread: a child ends with the thread that started it."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str], ready: Sequence[str]) -> None:
        """`ready`: patterns of log lines; it serves when all of them were there."""
        self.name = name
        self._command = command
        self._environ = environ
        self._ready = ready
        self._process: Process | None = None
        self._past: list[str] = []
        self.is_frozen = False

    def start(self) -> None:
        """Starts a process in place of the last one; `ready` says when it serves."""
        if self._process is not None:
            self._process.stop()
            self._past.append(self._process.log)
        self.is_frozen = False
        self._process = Process(self._command, name=self.name, environ=self._environ, cwd=REPOSITORY_ROOT)

    async def ready(self) -> None:
        """Returns when the process serves."""
        for pattern in self._ready:
            await asyncio.to_thread(self.process.wait_for_line, pattern, timeout=START_SECONDS)

    @property
    def process(self) -> Process:
        """The last one started."""
        assert self._process is not None
        return self._process

    @property
    def is_up(self) -> bool:
        """Whether it runs, frozen or not."""
        return self._process is not None and self._process.returncode is None

    @property
    def incarnations(self) -> set[str]:
        """The names under which a worker's present process has held leases."""
        return set(_INCARNATION.findall(self.process.log))

    @property
    def log(self) -> str:
        """What all of its processes have printed."""
        return "\n-- restarted\n".join([*self._past, self.process.log if self._process is not None else ""])

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP: it holds what it has and says nothing, as after a long pause of its machine."""
        self.is_frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self.is_frozen and self.is_up:
            self.process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    async def drain(self, *, seconds: float) -> int:
        """SIGTERM; returns the exit status once it has ended."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, timeout=seconds)

    def stop(self) -> None:
        """Ends it for good."""
        if self._process is not None:
            self.thaw()
            self._process.stop()


class RedisMember(Member):
    """Redis with its append-only file."""

    def __init__(self, redis: EmbeddedRedis) -> None:
        super().__init__("redis", redis.command(), {}, [])
        self._redis = redis

    async def ready(self) -> None:
        """Returns when it has read its file and answers."""

        def still_possible() -> None:
            assert self.is_up, self.log

        await self._redis.wait_until_loaded(still_possible=still_possible)

    @property
    def written_bytes(self) -> int:
        """How long its append-only file is now."""
        return self._file.stat().st_size

    def forget_after(self, size: int) -> None:
        """Cuts the file of a dead server: what was written after it had `size` bytes never reached the disk."""
        assert not self.is_up
        with self._file.open("r+b") as file:
            file.truncate(size)

    @property
    def _file(self) -> Path:
        (newest,) = self._redis.directory.glob("appendonlydir/*.incr.aof")
        return newest
