"""How tests are dealt out to the processes of pytest-xdist: file by file, and what takes long before what is short.

xdist's own order, which the Makefile turns off, is by the number of tests: a file whose only test takes a minute would
come last, when the other process has nothing left to do.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path

import pytest

SHARED_ENGINES = {"engine_worker": "engine_worker|engine_desk|engine_redis_url", "engine_stack": "engine_stack"}
"""Fixtures that start an engine for the session, and how files name them. These keep their order: the last ends it."""
SLOW_FOLDERS = {"client", "faults", "launcher", "load", "server"}
"""Whose tests start processes and wait for them."""
STACKS = "e2e"
"""Whose tests share a stack that stays once it was started, and costs something: they come late."""
MANY = 20
"""Files with more tests come before those; all that are left are short."""


@cache
def shared_engine(file: Path) -> str | None:
    """Returns the fixture of the engine that the tests of a file name, if any."""
    text = file.read_text("utf-8")
    return next((engine for engine, names in SHARED_ENGINES.items() if re.search(rf"\b(?:{names})\b", text)), None)


def deal(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests in the order in which to deal out their files, which stay whole."""
    counts = Counter(item.path for item in items)
    with_engine = {item.path for item in items if any(item.iter_markers("engine"))}
    for item in items:
        used = SHARED_ENGINES.keys() & getattr(item, "fixturenames", ())
        assert used <= {shared_engine(item.path)}, f"{item.path} does not name the fixture through which it uses {used}"
    files: dict[str, list[Path]] = defaultdict(list)
    for file, folder in {item.path: item.nodeid.split("/")[1] for item in items}.items():
        engine = shared_engine(file) if file in with_engine else None
        files[engine or _kind(folder, counts[file])].append(file)
    for kind in ("large", "small"):
        files[kind].sort(key=lambda file: -counts[file])

    engines = [file for engine in SHARED_ENGINES for file in files[engine]]
    dealt = [*engines, *_mixed(files["large"], files["slow"]), *_mixed(files["stacks"], files["small"])]
    places = {file: place for place, file in enumerate(dealt)}
    return sorted(items, key=lambda item: places[item.path])


def _kind(folder: str, count: int) -> str:
    if folder == STACKS:
        return "stacks"
    if folder in SLOW_FOLDERS:
        return "slow"
    return "large" if count > MANY else "small"


def _mixed(*kinds: Sequence[Path]) -> list[Path]:
    """Returns the files of all kinds, each from the beginning to the end: while some wait, others compute."""
    placed = [(number / len(files), file) for files in kinds for number, file in enumerate(files)]
    return [file for _, file in sorted(placed, key=itemgetter(0))]
