"""No engine outlives its worker: its children are told to die with it before they do anything else."""

import importlib.util
import sys


def guard_spawned_children() -> None:
    """Have every child that multiprocessing spawns import `engine_core.child` before anything else.

    multiprocessing imports the parent's main module first in a child, except where that is a package's `__main__`. The
    spec of the main module is what names it; a child that reads it there is guarded from its first moment.
    """
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("headrace_worker.engine_core.child")
