"""When bytes had come in: by the kernel's note of their packet, however late this process was to read them.

A process that waits for its turn, or stands still, reads a request late, and by its own clock would not know. Linux
notes the time of each packet (SO_TIMESTAMPNS). Elsewhere, and where a note is missing, bytes came when they were read.
"""

import socket
import struct
import sys
import time
from collections.abc import Iterable

_SO_TIMESTAMPNS = 35
"""Of Linux, of the option and of its notes; Python's socket module does not name it."""
_TIMESPEC = struct.Struct("@qq")
_NANOSECONDS = 10**9
NOTES_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
"""Room for a read's note."""
LONGEST_SECONDS = 60.0
"""A note that is older, or of the future, is not believed: it is by the wall clock, which may have been set since."""

Notes = Iterable[tuple[int, int, bytes]]


def note_arrivals(listening: socket.socket) -> None:
    """Has the kernel note when bytes come in, for all connections that are accepted from here on."""
    if sys.platform == "linux":
        listening.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def arrived_at(notes: Notes) -> float:
    """Returns `time.perf_counter()` at which the last of what was read just now had come in."""
    now = time.perf_counter()
    for level, kind, note in notes:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(note) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(note)
            age: float = (time.time_ns() - seconds * _NANOSECONDS - nanoseconds) / _NANOSECONDS
            if 0.0 <= age <= LONGEST_SECONDS:
                return float(now - age)
    return now
