"""Ends what a bench that died left behind. A program of its own, run with `python -S`: it imports next to nothing.

Its standard input is a pipe from the bench: `+N` names a process group that runs, `-N` one that has ended. When the
pipe closes, the bench is gone, however that happened, and the groups that are left are killed: also what is stopped,
or waits for a Redis that is gone.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Keeps watch until the bench has ended."""
    os.setsid()  # a signal to the bench's group shall not end its keeper
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line))
        else:
            groups.discard(-int(line))
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
