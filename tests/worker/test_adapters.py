"""Streams of LoRA adapters on the simulated engine: they go on with the weights that they began with, wherever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace_wire.adapters import AdapterConfig, AdapterUse
from headrace_wire.messages import StreamState
from headrace_wire.snapshot import ConfigSnapshot
from headrace_worker.config import HealingLimits, HoldLimits
from headrace_worker.worker import Worker
from tests.support.snapshots import simulated, snapshot
from tests.support.tiny_adapter import adapter_use as use
from tests.support.tiny_adapter import tiny_adapter
from tests.worker.conftest import RunWorker
from tests.worker.desk import WAIT_SECONDS, Answer, Desk
from tests.worker.mortal_engine import Fate, MortalEngine

TOKENS = 60
QUICK = HoldLimits(hold_seconds=0.05)
ADAPTED = simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 2, "max_loras": 1}, max_num_seqs=4)
"""One adapter at once: each other one that is asked for takes its place."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed, name in enumerate(("tides", "ebb"), 1):
        tiny_adapter(tmp_path / "acme" / name, seed=seed)
    return tmp_path


def config(*uses: AdapterUse) -> ConfigSnapshot:
    named = [
        AdapterConfig(
            id=one.name, tenant_id="t", deployment="sim", name=one.name, place=one.place, revision=one.revision
        )
        for one in uses
    ]
    return replace(snapshot(1, ADAPTED), adapters=named)


@asynccontextmanager
async def worker_of(run_worker: RunWorker, root: Path, *uses: AdapterUse) -> AsyncIterator[Worker]:
    async with run_worker(ADAPTED, config=config(*uses), adapter_dir=root, limits=QUICK, drain_seconds=0.05) as worker:
        yield worker


async def admit(desk: Desk, adapter: AdapterUse | None, *, window: int = 0, tokens: int = TOKENS) -> str:
    salt = adapter.key if adapter is not None else "base"
    return await desk.admit(adapter=adapter, cache_salt=salt, window=window, max_tokens=tokens, ignore_eos=True)


async def finished(desk: Desk, stream_id: str, *, owners: int = 1) -> str:
    answer: Answer = await desk.answer(stream_id)
    answer.check_order(owners=owners)
    assert answer.end.state is StreamState.FINISHED, answer.end.error
    return answer.text


async def undisturbed(desk: Desk, adapter: AdapterUse | None) -> str:
    return await finished(desk, await admit(desk, adapter))


async def suspended(desk: Desk, adapter: AdapterUse) -> str:
    """Return a stream that has some of its answer, and no reader."""
    stream_id = await admit(desk, adapter, window=10)
    await desk.record_in(stream_id, StreamState.SUSPENDED)
    return stream_id


async def resume(desk: Desk, stream_id: str) -> None:
    await desk.queue.credit([(stream_id, 2**31 - 1)])


async def test_a_suspended_stream_goes_on_with_its_adapter_though_others_took_its_place(
    desk: Desk, run_worker: RunWorker, root: Path
) -> None:
    tides, ebb = use(root, "tides"), use(root, "ebb")
    async with worker_of(run_worker, root, tides) as worker:
        texts = [await undisturbed(desk, one) for one in (tides, ebb, None)]
        assert len(set(texts)) == 3
        stream_id = await suspended(desk, tides)
        assert [await undisturbed(desk, one) for one in (ebb, None)] == texts[1:]
        assert set(worker._adapters._loaded) == {ebb.key}, "it was given up meanwhile"
        await resume(desk, stream_id)
        assert await finished(desk, stream_id, owners=2) == texts[0]


async def test_another_worker_goes_on_with_the_same_adapter(desk: Desk, run_worker: RunWorker, root: Path) -> None:
    tides, ebb = use(root, "tides"), use(root, "ebb")
    async with worker_of(run_worker, root, tides):
        expected = await undisturbed(desk, tides)
        other = await undisturbed(desk, ebb)
        stream_id = await suspended(desk, tides)
    # The configuration has dropped it: who was admitted with it keeps it.
    async with worker_of(run_worker, root, ebb):
        await resume(desk, stream_id)
        assert await finished(desk, stream_id, owners=2) == expected != other


async def test_a_running_stream_is_handed_over_with_its_adapter(desk: Desk, run_worker: RunWorker, root: Path) -> None:
    tides = use(root, "tides")
    async with worker_of(run_worker, root, tides):
        expected = await finished(desk, await admit(desk, tides, tokens=600))
        stream_id = await admit(desk, tides, tokens=600)
        await desk.first_token(stream_id)
    async with worker_of(run_worker, root):
        assert await finished(desk, stream_id, owners=2) == expected


async def test_a_stream_whose_files_have_changed_ends_and_is_not_continued_with_others(
    desk: Desk, run_worker: RunWorker, root: Path
) -> None:
    tides = use(root, "tides")
    async with worker_of(run_worker, root, tides):
        expected = await undisturbed(desk, tides)
        stream_id = await suspended(desk, tides)
    tiny_adapter(root / "acme" / "tides", seed=7)
    changed = use(root, "tides")
    assert changed.key != tides.key
    async with worker_of(run_worker, root, changed):
        await resume(desk, stream_id)
        answer = await desk.answer(stream_id)
        assert answer.end.error is not None
        assert (answer.end.state, answer.end.error.code) == (StreamState.FAILED, "dependency_unavailable")
        assert expected.startswith(answer.text)
        assert 0 < len(answer.text) < len(expected), "what was sent stands, and nothing else came"
        assert await undisturbed(desk, changed) != expected


async def test_who_waits_for_a_place_for_his_adapter_keeps_nobody_from_his_turn(
    desk: Desk, run_worker: RunWorker, root: Path
) -> None:
    """An engine has died: streams enter the next one in turn, and one of them cannot before the others have left."""
    tides, ebb = use(root, "tides"), use(root, "ebb")
    fate = Fate()
    async with run_worker(
        ADAPTED,
        config=config(tides),
        adapter_dir=root,
        create=lambda deployment: MortalEngine(deployment, fate),
        limits=HoldLimits(hold_seconds=10 * WAIT_SECONDS),
    ):
        texts = [await undisturbed(desk, one) for one in (tides, ebb)]
        held = await admit(desk, tides, window=10)
        await desk.record_in(held, StreamState.HELD)
        runs = await admit(desk, tides, window=20)
        await desk.record_in(runs, StreamState.HELD)
        waits = await admit(desk, ebb)
        await desk.record_in(waits, StreamState.RUNNING)
        fate.plan([30])
        await resume(desk, runs)
        assert await finished(desk, runs, owners=2) == texts[0]
        await resume(desk, held)
        assert await finished(desk, held, owners=2) == texts[0]
        assert await finished(desk, waits) == texts[1]
    assert fate.deaths == 1


async def test_steady_traffic_of_one_adapter_does_not_keep_another_ones_waiting(
    desk: Desk, run_worker: RunWorker, root: Path
) -> None:
    """There is room for one. Each stream of the first comes while the one before it runs."""
    tides, ebb = use(root, "tides"), use(root, "ebb")
    async with worker_of(run_worker, root, tides):
        await desk.first_token(await admit(desk, tides, tokens=300))
        waits = asyncio.create_task(desk.answer(await admit(desk, ebb)))
        for _ in range(100):
            if waits.done():
                break
            await desk.first_token(await admit(desk, tides, tokens=300))
        assert waits.done(), "it is still not its turn"
        assert (await waits).end.state is StreamState.FINISHED


async def test_who_waits_for_a_place_in_vain_is_no_failure_of_the_engine(
    desk: Desk, run_worker: RunWorker, root: Path
) -> None:
    """A single one would end this engine, and with it the stream that has the place."""
    tides, ebb = use(root, "tides"), use(root, "ebb")
    async with run_worker(
        ADAPTED,
        config=config(tides),
        adapter_dir=root,
        limits=HoldLimits(hold_seconds=10 * WAIT_SECONDS),
        healing=HealingLimits(error_window=1),
    ) as worker:
        held = await admit(desk, tides, window=10)
        await desk.record_in(held, StreamState.HELD)
        answer = await desk.answer(await desk.admit(adapter=ebb, cache_salt=ebb.key, ttft_timeout_seconds=0.05))
        assert answer.end.error is not None
        assert answer.end.error.code == "timeout"
        assert not worker._streams.health.is_suspect
        await resume(desk, held)
        await finished(desk, held)
