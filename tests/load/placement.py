"""Which core does what: the system under test on one, load and simulated engine on another."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Cores by number; None where the machine has one core only and everything shares it."""

    system: int | None
    load: int | None

    @classmethod
    def of_this_machine(cls) -> "Placement":
        """The first two cores that this process may use."""
        cores = sorted(os.sched_getaffinity(0))
        return cls(cores[0], cores[1]) if len(cores) > 1 else cls(None, None)

    def __str__(self) -> str:
        if self.system is None:
            return "everything on one core"
        return f"system under test on core {self.system}, load and simulated engine on core {self.load}"


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Keeps this thread, and the processes that it starts inside, on one core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def going_first(*, wanted: bool) -> Iterator[None]:
    """Has this process, and those that it starts inside, run whenever they want to, before all others.

    For a machine on which others work too. It takes waiting for them out of the figures, not what they do to caches.

    Raises:
        PermissionError: only root may.
    """
    if not wanted:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def kept_awake(*cores: int | None) -> Iterator[list[int]]:
    """Keeps cores from falling asleep with a loop on each that runs only when nothing else wants to (SCHED_IDLE).

    A virtual core that sleeps is given to other machines. It wakes late, with cold caches: on a 2-core guest that took
    half as much CPU again for each token and added 4 ms to each first one. Yields the loops' pids.

    Each loop has a session of its own, whose scheduling group is as nice as can be: SCHED_IDLE counts only within a
    group (`sched_autogroup_enabled`), and in the bench's own the loop kept what woke on its core waiting until the next
    tick, 4 ms, for one plain answer in thirty.
    """
    with ExitStack() as ending:
        pids = []
        for core in cores:
            if core is not None:
                loop = ending.enter_context(subprocess.Popen((sys.executable, "-S", "-c", _IDLE_LOOP, str(core))))
                ending.callback(loop.kill)
                pids.append(loop.pid)
        # The kernel spins in wait(2) while anybody else looks at the dead loop's /proc. If this process still went
        # first then (`going_first`), the other one would never come to an end, nor this one.
        ending.callback(os.sched_setscheduler, 0, os.SCHED_OTHER, os.sched_param(0))
        yield pids


_IDLE_LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
bench = os.getppid()
os.setsid()
if os.path.exists("/proc/self/autogroup"):
    with open("/proc/self/autogroup", "w") as group:
        group.write("19")
while os.getppid() == bench:
    for _ in range(1_000_000):
        pass
"""


def move_process(pid: int, core: int | None) -> None:
    """Moves a running process with all its threads."""
    if core is None:
        return
    for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  the names are all that is wanted
        os.sched_setaffinity(int(thread), {core})
