"""Ties the life of a child process to that of its parent, on Linux by prctl(2); elsewhere these calls do little."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Loaded before any fork: between fork and exec nothing may be imported or looked up.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """Makes this process the parent of grandchildren whose own parent dies, so that it can end them."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def follow_parent(number: int = signal.SIGTERM) -> None:
    """For a `preexec_fn`: the child gets signal `number` when the thread that started it ends, however that happens.

    The thread, not the process (prctl(2)): start such children from a thread that lives as long as they should.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def lead_group_and_follow_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """For a `preexec_fn`: `follow_parent` in a session of its own; `parent` is the process that forks.

    The terminal's Ctrl-C then reaches the supervisor alone, and `killpg` reaches the child's children too.
    """
    os.setsid()
    follow_parent(number)
    if os.getppid() != parent:  # it died before prctl: no signal will come
        os._exit(1)
