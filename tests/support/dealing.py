"""How tests are dealt out to the processes of pytest-xdist: file by file, long ones early.

xdist's own order is by the number of tests: a file whose only test takes a minute would come last, when the other
process has nothing left to do.
"""

from collections import Counter
from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadGroupScheduling

SLOW_FOLDERS = ("launcher", "load", "faults", "server", "client", "e2e")
"""Whose tests start processes, in the order in which they are dealt out: those of `e2e` run on to the end."""
MANY = 20
"""Files with more tests come before the slow ones; all that are left are short."""
SHARED_ENGINES = ("engine_worker", "engine_stack")
"""Fixtures: who uses the same one runs in the same process, so that it is started once."""


class ByFileOrGroup(LoadGroupScheduling):
    """`--dist loadgroup`, where a test without a group belongs to its file."""

    def _split_scope(self, nodeid: str) -> str:
        return str(super()._split_scope(nodeid)).partition("::")[0]


def group(item: pytest.Item) -> None:
    """Marks a test that uses a shared engine."""
    for name in SHARED_ENGINES:
        if name in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(name))


def deal(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests in the order in which to deal out their files, which stay whole."""
    counts = Counter(item.path for item in items)

    def rank(item: pytest.Item) -> tuple[int, int, str]:
        folder = item.nodeid.split("/")[1]
        if folder in SLOW_FOLDERS:
            return 1, SLOW_FOLDERS.index(folder), item.path.name
        number = counts[item.path]
        return (0 if number > MANY else 2), -number, str(item.path)

    return sorted(items, key=rank)
