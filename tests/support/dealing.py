"""How tests are dealt out to the processes of pytest-xdist: file by file, long ones early.

xdist's own order is by the number of tests: a file whose only test takes a minute would come last, when the other
process has nothing left to do.
"""

from collections import Counter
from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadGroupScheduling

SHARED_ENGINES = ("engine_worker", "engine_stack")
"""Fixtures: files that use the same one run in one process and in their order, so that it is started once."""
SLOW_FOLDERS = ("launcher", "load", "faults", "server", "client", "e2e")
"""Whose tests start processes, in the order in which they are dealt out: those of `e2e` run on to the end."""
MANY = 20
"""Files with more tests come before the slow ones; all that are left are short."""


class ByFileOrGroup(LoadGroupScheduling):  # type: ignore[misc]  # untyped
    """`--dist loadgroup`, where a test without a group belongs to its file."""

    def _split_scope(self, nodeid: str) -> str:
        return str(super()._split_scope(nodeid)).partition("::")[0]


def group(items: Sequence[pytest.Item]) -> None:
    """Marks the tests of files that use a shared engine."""
    names = {item.path: name for item in items if (name := _shared_engine(item))}
    for item in items:
        if item.path in names:
            item.add_marker(pytest.mark.xdist_group(names[item.path]))


def deal(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests in the order in which to deal out their files, which stay whole."""
    counts = Counter(item.path for item in items)
    with_engines = {
        item.path for item in items if any(item.iter_markers("engine")) or any(item.iter_markers("browser"))
    }

    def rank(item: pytest.Item) -> tuple[int, int, str]:
        folder = item.nodeid.split("/")[1]
        if (marker := item.get_closest_marker("xdist_group")) and item.path in with_engines:
            return 0, SHARED_ENGINES.index(marker.args[0]), ""
        if folder in SLOW_FOLDERS:
            return 2, SLOW_FOLDERS.index(folder), item.path.name
        return (1 if counts[item.path] > MANY else 3), -counts[item.path], str(item.path)

    return sorted(items, key=rank)


def _shared_engine(item: pytest.Item) -> str | None:
    if marker := item.get_closest_marker("xdist_group"):
        return str(marker.args[0])
    return next((name for name in SHARED_ENGINES if name in getattr(item, "fixturenames", ())), None)
