"""Windows of a policy's week as people write them, one a line: `reserve 20 mon-fri 08:00-18:00`."""

import re
from datetime import time

from apps.deployments.autoscale.terms import Window, WindowKind

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_LINE = re.compile(
    r"(?P<kind>reserve|release)\s+(?P<percent>\d{1,3})\s*%?\s+(?P<days>[a-z,-]+)\s+"
    r"(?P<start>\d{1,2}:\d{2})\s*-\s*(?P<end>\d{1,2}:\d{2})"
)
MOST_RESERVED = 400


class ScheduleError(ValueError):
    """A line cannot be read. The message says which, and why."""


def schedule_parse(text: str) -> tuple[Window, ...]:
    """Returns the windows, in the order of their lines; empty lines are left out.

    Raises:
        ScheduleError: A line is none.
    """
    return tuple(_window(line.strip().lower()) for line in text.splitlines() if line.strip())


def _window(line: str) -> Window:
    match = _LINE.fullmatch(line)
    if match is None:
        msg = (
            f"“{line}” is no window; write one like “reserve 20 mon-fri 08:00-18:00” or “release 50 daily 22:00-06:00”."
        )
        raise ScheduleError(msg)
    kind, percent = WindowKind(match["kind"]), int(match["percent"])
    most = MOST_RESERVED if kind is WindowKind.RESERVE else 100
    if not 1 <= percent <= most:
        raise ScheduleError(f"“{line}”: from 1 to {most} per cent.")
    try:
        start, end = (time.fromisoformat(match[name].zfill(5)) for name in ("start", "end"))
    except ValueError as error:
        raise ScheduleError(f"“{line}”: there is no such time of the day.") from error
    if start == end:
        raise ScheduleError(f"“{line}”: it ends when it begins.")
    return Window(kind, _days(match["days"], line), start, end, percent)


def _days(text: str, line: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if part == "daily":
            days.update(range(7))
        elif first in _DAYS and (not last or last in _DAYS):
            begin = _DAYS.index(first)
            length = (_DAYS.index(last) - begin) % 7 if last else 0
            days.update((begin + step) % 7 for step in range(length + 1))
        else:
            raise ScheduleError(f"“{line}”: days are {', '.join(_DAYS)}, spans of them (mon-fri), or daily.")
    return frozenset(days)
