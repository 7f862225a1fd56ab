"""The shelf of an engine's adapters while that engine comes, goes, and takes its time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace_wire.adapters import AdapterUse
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.adapter_shelf import AdapterShelf
from headrace_worker.engine import AdapterRefusedError, EngineAdapter, EngineDeadError
from headrace_worker.simulated_engine import SimulatedEngine
from tests.support.snapshots import simulated
from tests.support.tiny_adapter import adapter_use, tiny_adapter
from tests.worker.desk import WAIT_SECONDS


class SlowToForget(SimulatedEngine):
    """Takes until it `may` to forget an adapter."""

    def __init__(self, deployment: DeploymentConfig) -> None:
        super().__init__(deployment)
        self.is_asked = asyncio.Event()
        self.may = asyncio.Event()
        self.forgotten: list[int] = []

    async def unload_adapter(self, number: int) -> None:
        self.is_asked.set()
        await self.may.wait()
        self.forgotten.append(number)


@asynccontextmanager
async def attached(shelf: AdapterShelf, *, places: int) -> AsyncIterator[SlowToForget]:
    """Have an engine for the length of an `async with`."""
    engine = SlowToForget(simulated("sim", engine_args={"max_loras": places}))
    shelf.attach(engine, await engine.start(lambda _: None))
    try:
        yield engine
    finally:
        shelf.detach()
        await engine.shutdown()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed, name in enumerate(("tides", "ebb", "flood"), 1):
        tiny_adapter(tmp_path / "acme" / name, seed=seed)
    return tmp_path


async def test_between_two_engines_it_is_not_the_adapter_that_fails(root: Path) -> None:
    """Whoever asks goes back into the queue, and is not told that this worker has no adapters."""
    shelf, tides = AdapterShelf(root), adapter_use(root, "tides")
    with pytest.raises(EngineDeadError):
        await shelf.get(tides)
    async with attached(shelf, places=1):
        assert (await shelf.get(tides)).name == tides.key
    with pytest.raises(EngineDeadError):
        await shelf.get(tides)


async def test_who_waits_for_a_place_is_let_go_with_the_engine_and_keeps_nobody_from_the_next(root: Path) -> None:
    shelf, tides, ebb = AdapterShelf(root), adapter_use(root, "tides"), adapter_use(root, "ebb")
    looked = asyncio.Event()

    def in_use() -> set[str]:
        looked.set()
        return {tides.key}

    shelf.in_use = in_use
    async with asyncio.timeout(WAIT_SECONDS):
        async with attached(shelf, places=1):
            await shelf.get(tides)
            waiting = asyncio.create_task(shelf.get(ebb))
            await looked.wait()
        async with attached(shelf, places=0):
            with pytest.raises(EngineDeadError):
                await waiting
            with pytest.raises(AdapterRefusedError, match="without LoRA adapters"):
                await shelf.get(ebb)


async def test_what_is_wanted_again_before_its_turn_to_go_stays(root: Path) -> None:
    """The configuration names none any more; while the first one goes a stream comes for the second one."""
    shelf, tides, ebb = AdapterShelf(root), adapter_use(root, "tides"), adapter_use(root, "ebb")
    used: set[str] = set()
    shelf.in_use = lambda: used
    async with asyncio.timeout(WAIT_SECONDS), attached(shelf, places=2) as engine:
        first, second = await shelf.get(tides), await shelf.get(ebb)
        dropping = asyncio.create_task(shelf.load([]))
        await engine.is_asked.wait()
        used.add(ebb.key)
        assert await shelf.get(ebb) == second
        engine.may.set()
        await dropping
        assert engine.forgotten == [first.number]
        assert await shelf.get(ebb) == second


class Line:
    """Streams of one shelf: who asks, who has come, and who needs what."""

    def __init__(self, shelf: AdapterShelf) -> None:
        self._shelf = shelf
        self.needed: list[str] = []
        self.came: list[str] = []
        self._changed = asyncio.Event()
        self._looks = 0
        shelf.in_use = self._in_use

    def _in_use(self) -> set[str]:
        self._looks += 1
        self._changed.set()
        return set(self.needed)

    async def begin(self, name: str, adapter: AdapterUse) -> EngineAdapter:
        found = await self._shelf.get(adapter)
        self.needed.append(adapter.key)
        self.came.append(name)
        return found

    async def somebody_waits(self) -> None:
        """Return when whoever is first in the line has found no place, and looks again."""
        before = self._looks
        while self._looks < before + 2:
            self._changed.clear()
            await self._changed.wait()


async def test_who_asks_for_an_adapter_stands_behind_those_who_wait_for_its_place(root: Path) -> None:
    """Else requests of one keep the other one waiting for as long as they come."""
    shelf, tides, ebb = AdapterShelf(root), adapter_use(root, "tides"), adapter_use(root, "ebb")
    line = Line(shelf)
    async with asyncio.timeout(WAIT_SECONDS), attached(shelf, places=1) as engine, asyncio.TaskGroup() as tasks:
        engine.may.set()
        kept = await line.begin("tides", tides)
        first = tasks.create_task(line.begin("ebb", ebb))
        await line.somebody_waits()
        later = tasks.create_task(line.begin("tides later", tides))
        with_the_first = tasks.create_task(line.begin("ebb with the first", ebb))
        await line.somebody_waits()
        assert line.came == ["tides"]
        assert await shelf.get(tides, is_kept=True) == kept, "it was there before, and is what they wait for"
        line.needed.remove(tides.key)
        await asyncio.gather(first, with_the_first)
        await line.somebody_waits()
        assert line.came == ["tides", "ebb", "ebb with the first"]
        line.needed.clear()
        assert (await later).number > (await first).number > kept.number


async def test_the_first_place_that_is_free_ends_the_wait_and_nobody_else_leaves(root: Path) -> None:
    shelf = AdapterShelf(root)
    tides, ebb, flood = (adapter_use(root, name) for name in ("tides", "ebb", "flood"))
    line = Line(shelf)
    async with asyncio.timeout(WAIT_SECONDS), attached(shelf, places=2) as engine, asyncio.TaskGroup() as tasks:
        engine.may.set()
        oldest, newer = await line.begin("tides", tides), await line.begin("ebb", ebb)
        waiting = tasks.create_task(line.begin("flood", flood))
        await line.somebody_waits()
        assert await line.begin("ebb again", ebb) == newer, "it is not the one that is to leave"
        later = tasks.create_task(line.begin("tides later", tides))
        await line.somebody_waits()
        line.needed = [tides.key]
        await waiting
        assert await later == oldest
        assert line.came == ["tides", "ebb", "ebb again", "flood", "tides later"]
        assert engine.forgotten == [newer.number]


async def test_all_of_the_line_are_let_go_with_their_engine(root: Path) -> None:
    """Also who has not had his turn: he is not to fill the next engine for a stream that is elsewhere by then."""
    shelf, tides, ebb, flood = AdapterShelf(root), *(adapter_use(root, name) for name in ("tides", "ebb", "flood"))
    line = Line(shelf)
    async with asyncio.timeout(WAIT_SECONDS):
        async with attached(shelf, places=1):
            await line.begin("tides", tides)
            asked = [asyncio.create_task(line.begin("ebb", ebb))]
            await line.somebody_waits()
            asked += [asyncio.create_task(line.begin("", use)) for use in (ebb, tides, flood, tides)]
            await line.somebody_waits()
        async with attached(shelf, places=1):
            ends = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(end) for end in ends] == [EngineDeadError] * 5
            line.needed.clear()
            await line.begin("tides", tides)
            assert line.came == ["tides", "tides"]
