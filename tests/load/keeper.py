"""Ends what a bench that died left behind. A program of its own, run with `python -S`: it imports next to nothing.

Its standard input is a pipe from the bench: `+N FOLDER` names a process group that runs and where its temporary files
are, `-N` one that has ended. When the pipe closes, the bench is gone, however that happened, and the groups that are
left are killed: also what is stopped, or waits for a Redis that is gone.
"""

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Keeps watch until the bench has ended."""
    os.setsid()  # a signal to the bench's group shall not end its keeper
    groups: dict[int, str] = {}
    for line in sys.stdin:
        if line.startswith("+"):
            group, _, folder = line[1:].rstrip("\n").partition(" ")
            groups[int(group)] = folder
        else:
            groups.pop(-int(line), None)
    for number, folder in groups.items():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(number, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
