"""The shelf of an engine's adapters while that engine comes, goes, and takes its time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.adapter_shelf import AdapterShelf
from headrace_worker.engine import AdapterRefusedError, EngineDeadError
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
    for seed, name in enumerate(("tides", "ebb"), 1):
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
