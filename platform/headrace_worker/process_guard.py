"""No engine outlives its worker: the kernel ends the child when the worker dies, however it dies."""

import ctypes
import importlib.util
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int | None = None) -> None:
    """Have this process killed when its parent ends. Linux only; elsewhere a closed pipe has to do.

    The signal follows the parent's *thread* that started this process: start children from threads that stay.
    `parent_pid` is who started it, where that is known: it may have died before this call.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


def guard_spawned_children() -> None:
    """Have every child that multiprocessing spawns import `engine_core.child` before anything else.

    multiprocessing imports the parent's main module first in a child, except where that is a package's `__main__`. The
    spec of the main module is what names it; a child that reads it there is guarded from its first moment.
    """
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("headrace_worker.engine_core.child")
