"""No child outlives its parent: the kernel ends it when the parent dies, however it dies."""

import ctypes
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
