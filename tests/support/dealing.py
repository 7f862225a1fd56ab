"""In which order tests run, and are dealt out to the processes of pytest-xdist: file by file, long ones early.

xdist's own order is by the number of tests: a file whose only test takes a minute would come last, when the other
process has nothing left to do.
"""

from collections import Counter
from collections.abc import Sequence

import pytest

SHARED_ENGINES = ("engine_worker", "engine_stack")
"""Fixtures: files that use the same one come one after the other, and in their order: the last one ends it."""
SLOW_FOLDERS = ("launcher", "load", "faults", "server", "client", "e2e")
"""Whose tests start processes, in the order in which they are dealt out: those of `e2e` run on to the end."""
MANY = 20
"""Files with more tests come before the slow ones; all that are left are short."""


def deal(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests in the order in which to deal out their files, which stay whole."""
    counts = Counter(item.path for item in items)
    engines = {item.path: name for item in items if (name := _shared_engine(item))}

    def rank(item: pytest.Item) -> tuple[int, int, str]:
        folder = item.nodeid.split("/")[1]
        if item.path in engines:
            return 0, SHARED_ENGINES.index(engines[item.path]), ""
        if folder in SLOW_FOLDERS:
            return 2, SLOW_FOLDERS.index(folder), item.path.name
        return (1 if counts[item.path] > MANY else 3), -counts[item.path], str(item.path)

    return sorted(items, key=rank)


def _shared_engine(item: pytest.Item) -> str | None:
    if not any(item.iter_markers("engine")):
        return None
    return next((name for name in SHARED_ENGINES if name in getattr(item, "fixturenames", ())), None)
