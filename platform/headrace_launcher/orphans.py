"""Descendants that the supervisor did not start itself: left by a child that died, adopted by `adopt_orphans`."""

import os
from contextlib import suppress

import psutil

_END_SECONDS = 5.0


def bury_group(group: int) -> None:
    """Waits for the adopted processes of a killed process group, whose leader was waited for already; blocks."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)


def end_orphans() -> None:
    """Kills whatever descends from this process, to be called when all of its own children have ended."""
    remaining = psutil.Process().children(recursive=True)
    for process in remaining:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(remaining, timeout=_END_SECONDS)
