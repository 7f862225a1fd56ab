"""A supervisor in a process of its own, for `test_supervisor`: `python -m tests.launcher.supervised SCENARIO`.

It adopts and ends every descendant of its process, so it cannot run inside the test process. Each scenario prints what
the test looks for; lines of the supervised processes carry their names in front.
"""

import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO, cast

import psutil

from headrace_launcher.control import Control
from headrace_launcher.process_output import PrefixedOutput
from headrace_launcher.supervisor import ProcessKind, Supervisor

SLEEPER = "import os, signal; os.write(1, b'up\\n'); signal.pause()"
STUBBORN = (
    "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(1, b'up\\n')\n"
    "while True: signal.pause()"
)
FAREWELL = (
    "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('farewell', flush=True)));"
    "os.write(1, b'up\\n'); signal.pause()"
)
RETURNING = (
    "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75));"
    "os.write(1, b'up\\n')\n"
    "while True: signal.pause()"
)
PARENT = (
    "import subprocess, sys, signal\n"
    "code = sys.argv[1]\n"
    "same = subprocess.Popen([sys.executable, '-c', code])\n"
    "apart = subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
    "print('children', same.pid, apart.pid, flush=True)\n"
    "signal.pause()\n"
)


def kind(
    name: str, code: str, *arguments: str, tier: int = 1, stop_seconds: float = 10.0, may_leave: bool = False
) -> ProcessKind:
    command = [sys.executable, "-c", code, *arguments]
    environ = dict(os.environ)
    return ProcessKind(
        name=name, command=command, environ=environ, tier=tier, stop_seconds=stop_seconds, may_leave=may_leave
    )


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Recorded(io.TextIOBase):
    """Standard output that tells when something was written to it."""

    def __init__(self, on_write: Callable[[], None]) -> None:
        self.text = ""
        self._on_write = on_write

    def write(self, text: str) -> int:
        self.text += text
        self._on_write()
        return sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()


class Watched:
    """A supervisor whose changes and output can be waited for."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._output = Recorded(self._changed.set)
        self.supervisor = Supervisor(PrefixedOutput(cast("TextIO", self._output)), on_change=self._changed.set)

    @property
    def text(self) -> str:
        return self._output.text

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def until_up(self, count: int) -> None:
        """Returns when `count` processes have said that they are up, their signal handlers in place."""
        await self.until(lambda: self._output.text.count("| up") >= count)

    async def end(self) -> None:
        await self.supervisor.stop()
        say("descendants left:", len(psutil.Process().children(recursive=True)))


async def scale(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(kind("sleeper", SLEEPER))
    for count in (3, 1, 2):
        await supervisor.scale("sleeper", count)
        say("scaled to", count, *sorted(supervisor.pids))


async def victims(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(kind("sleeper", SLEEPER))
    await supervisor.scale("sleeper", 4)
    oldest = supervisor.pids["sleeper-1"]
    await supervisor.scale("sleeper", 2, victims=[oldest])
    say("left", *sorted(supervisor.pids))


async def ending_elsewhere(watched: Watched) -> None:
    """Without waiting: those that end count no more, and others are started beside them."""
    supervisor = watched.supervisor
    supervisor.add(kind("stubborn", STUBBORN, stop_seconds=600))
    await supervisor.scale("stubborn", 2)
    await watched.until_up(2)
    await supervisor.scale("stubborn", 1, wait=False)
    say("serving", len(supervisor.serving("stubborn")), "of", len(supervisor.pids))
    await supervisor.scale("stubborn", 2)
    say("again", *sorted(supervisor.pids))
    supervisor.hurry()


async def ports(watched: Watched) -> None:
    code = "import os, signal; os.write(1, b'port ' + os.environb[b'PORT'] + b' up\\n'); signal.pause()"
    given = replace(kind("listener", code), environ={**os.environ, "PORT": "7"}, port_variables=["PORT"])
    watched.supervisor.add(given)
    await watched.supervisor.scale("listener", 2)
    await watched.until(lambda: watched.text.count(" up") == 2)


async def control(watched: Watched) -> None:
    """Answers on the socket of the folder in the second argument, until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    ear = Control(watched.supervisor, Path(sys.argv[2]), lambda name: kind(f"worker:{name}", SLEEPER))
    await ear.start()
    say("listening")
    await ended.wait()
    await ear.stop()


async def restart(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(kind("failing", "raise SystemExit(3)"))
    await supervisor.scale("failing", 1)
    await watched.until(lambda: supervisor.failures("failing") >= 3)
    say("failures", supervisor.failures("failing"))


async def killed_member(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(kind("sleeper", SLEEPER))
    await supervisor.scale("sleeper", 1)
    os.kill(supervisor.pids["sleeper-1"], 9)
    await watched.until(lambda: "sleeper-2" in supervisor.pids)
    say("again", *supervisor.pids)


async def leaving(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(kind("worker", FAREWELL, may_leave=True))
    await supervisor.scale("worker", 3)
    await watched.until_up(3)
    os.kill(supervisor.pids["worker-1"], signal.SIGTERM)
    await watched.until(lambda: len(supervisor.pids) == 2)
    os.kill(supervisor.pids["worker-2"], signal.SIGKILL)
    await watched.until(lambda: "worker-4" in supervisor.pids)
    say("failures", supervisor.failures("worker"), "left", *sorted(supervisor.pids))


async def replacing(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(kind("worker", RETURNING, may_leave=True))
    await supervisor.scale("worker", 1)
    for number in (1, 2, 3):
        await watched.until_up(number)
        os.kill(supervisor.pids[f"worker-{number}"], signal.SIGTERM)
    await watched.until_up(4)
    say("failures", supervisor.failures("worker"), "left", *sorted(supervisor.pids))


async def grandchildren(watched: Watched) -> None:
    watched.supervisor.add(kind("parent", PARENT, STUBBORN))
    await watched.supervisor.scale("parent", 1)
    await watched.until(lambda: "children" in watched.text)  # said by the parent, before or after they are up
    await watched.until_up(2)


async def order(watched: Watched) -> None:
    for tier, name in enumerate(("store", "gateway", "worker")):
        watched.supervisor.add(kind(name, FAREWELL, tier=tier))
        await watched.supervisor.scale(name, 1)
    await watched.until_up(3)


async def hurry(watched: Watched) -> None:
    watched.supervisor.add(kind("stubborn", STUBBORN, stop_seconds=600))
    await watched.supervisor.scale("stubborn", 1)
    await watched.until_up(1)
    ending = asyncio.create_task(watched.supervisor.stop())
    await asyncio.sleep(0)  # it is waiting for the process now
    watched.supervisor.hurry()
    await ending


async def too_slow(watched: Watched) -> None:
    watched.supervisor.add(kind("stubborn", STUBBORN, stop_seconds=0.2))
    await watched.supervisor.scale("stubborn", 1)
    await watched.until_up(1)


async def missing(watched: Watched) -> None:
    watched.supervisor.add(ProcessKind(name="missing", command=["/nowhere/program"], environ=dict(os.environ), tier=1))
    try:
        await watched.supervisor.scale("missing", 1)
    except Exception as error:  # noqa: BLE001  its kind is what is printed
        say(type(error).__name__, error)


async def until_killed(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(kind("sleeper", SLEEPER))
    supervisor.add(kind("celery", SLEEPER))
    await supervisor.scale("sleeper", 2)
    await supervisor.scale("celery", 1)
    say("pids", *supervisor.pids.values())
    await asyncio.Event().wait()


async def main(scenario: str) -> None:
    watched = Watched()
    try:
        await globals()[scenario](watched)
    finally:
        await watched.end()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
