"""The process that judges: reads requests from stdin, writes answers to stdout, ends with its owner.

    python -m headrace_guard.judges.child PARENT_PID

One thread: a text takes milliseconds, and two threads of a matrix product wait for each other wherever an engine keeps
the other cores busy. More children judge more.
"""

import os
import signal
import sys

from headrace_guard.judges.frames import Prepare, decode_request, encode, read_frame
from headrace_wire.parent_death import die_with_parent


def main() -> None:
    """Serve until stdin ends."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the owner's to act upon
    os.putenv("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported
    # Whatever a library prints must not get between the answers.
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    from headrace_guard.judges.bench import Bench  # noqa: PLC0415  # imports numpy

    bench = Bench()
    answers.write(encode([]))
    answers.flush()
    while (body := read_frame(requests)) is not None:
        request = decode_request(body)
        reply = bench.prepare(request) if isinstance(request, Prepare) else bench.judge(request.jobs)
        answers.write(encode(reply))
        answers.flush()


if __name__ == "__main__":
    main()
