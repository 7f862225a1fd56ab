"""LoRA adapters in the real engine by itself, which knows two of them and runs one at a time."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from headrace_wire.ids import new_stream_id
from headrace_worker.engine import EngineAdapter, EngineDeadError
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from tests.support.tiny_adapter import tiny_adapter
from tests.worker.engines import (
    KV_TOKENS,
    EngineBench,
    check_nothing_left,
    contract_deployment,
    engine_processes,
    started,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),
]

OPTIONS = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 2, "max_lora_rank": 8}
CUT = 40
TOKEN_BYTES = 1024
"""Of the tiny model's KV cache."""
DEATH_SECONDS = 30.0
"""Half of what an engine has for an answer: who waits as long has not heard of its death."""


@dataclass
class Adapted:
    """An engine that has loaded two adapters."""

    bench: EngineBench
    tides: EngineAdapter
    ebb: EngineAdapter


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    plain = contract_deployment("vllm", lambda: tiny_model)
    deployment = replace(plain, engine_args={**plain.engine_args, **OPTIONS})
    checkpoints = CheckpointSettings(
        directory=str(folder / "checkpoints"), every_tokens=64, every_seconds=600, min_tokens=64
    )
    async with started("vllm", deployment, checkpoints=checkpoints) as bench:
        tides, ebb = (
            EngineAdapter(number, name, str(tiny_adapter(folder / name, seed=number)))
            for number, name in enumerate(("tides", "ebb"), 1)
        )
        for adapter in (tides, ebb):
            await bench.engine.load_adapter(adapter)
        yield Adapted(bench, tides, ebb)


def prompt(number: int, length: int = 300) -> list[int]:
    return random.Random(number).choices(range(100, 300), k=length)


def last(bench: EngineBench, request: str) -> int:
    """Return when the last output of a request came, by the order of all outputs."""
    return len(bench.order) - 1 - bench.order[::-1].index(request)


async def forget_prefixes(bench: EngineBench) -> None:
    """Have other prompts take all of the KV cache."""
    for number in range(KV_TOKENS // 480 + 1):
        await bench.answer(prompt(1000 + number, 480), max_tokens=1)


async def test_blocks_of_one_are_no_others_even_under_one_salt(adapted: Adapted) -> None:
    """Gateways give each a salt of its own; the engine tells them apart without."""
    bench = adapted.bench
    found: list[int] = []
    answers: list[list[int]] = []
    asked = [None, adapted.tides, adapted.ebb]
    for adapter in [*asked, *asked]:
        request = await bench.submit(prompt(1), adapter=adapter, max_tokens=8)
        answers += await bench.finished(request)
        found.append(bench.cached_tokens[request])
    assert found == [0, 0, 0, 288, 288, 288]
    assert answers[:3] == answers[3:]
    assert len(set(map(tuple, answers))) == 3
    await check_nothing_left(bench)


async def test_held_requests_of_more_adapters_than_run_at_once_go_on_one_after_the_other(adapted: Adapted) -> None:
    """Both come back with their KV cache in the same step; vLLM itself asserts that their adapters fit."""
    bench, both = adapted.bench, (adapted.tides, adapted.ebb)
    wholes = [await bench.answer(prompt(2, 12), adapter=adapter) for adapter in both]
    requests = [await bench.submit(prompt(2, 12), adapter=adapter, credit=5) for adapter in both]
    await bench.held(*requests)
    bench.engine.credit(dict.fromkeys(requests, 1000))
    assert await bench.finished(*requests) == wholes
    await check_nothing_left(bench)


async def test_later_requests_of_a_running_adapter_do_not_keep_another_one_out_of_the_batch(adapted: Adapted) -> None:
    """By itself vLLM runs what fits beside what runs, for as long as such requests come."""
    bench, tides, ebb = adapted.bench, adapted.tides, adapted.ebb
    wholes = {one: await bench.answer(prompt(4, 12), adapter=one, max_tokens=20) for one in (tides, ebb, None)}
    running = await bench.submit(prompt(5, 12), adapter=tides, max_tokens=80)
    await bench.until(lambda: bool(bench.outputs[running]))
    waiting = [await bench.submit(prompt(4, 12), adapter=one, max_tokens=20) for one in (ebb, tides, None, ebb)]
    first, later, _, second = waiting
    assert await bench.finished(*waiting) == [wholes[ebb], wholes[tides], wholes[None], wholes[ebb]]
    began = [bench.order.index(request) for request in (first, later, second)]
    assert began == sorted(began), "one that came later went first"
    assert began[1] > last(bench, running), "its adapter's turn was over"
    await check_nothing_left(bench)


async def test_one_that_comes_back_with_its_kv_cache_is_not_overtaken_by_later_ones(adapted: Adapted) -> None:
    bench, tides, ebb = adapted.bench, adapted.tides, adapted.ebb
    wholes = {one: await bench.answer(prompt(6, 12), adapter=one, max_tokens=20) for one in (tides, ebb)}
    held = await bench.submit(prompt(6, 12), adapter=ebb, credit=5, max_tokens=20)
    await bench.held(held)
    running = await bench.submit(prompt(5, 12), adapter=tides, max_tokens=80)
    await bench.until(lambda: bool(bench.outputs[running]))
    bench.engine.credit({held: 1000})
    await bench.held()
    later = await bench.submit(prompt(6, 12), adapter=tides, max_tokens=20)
    assert await bench.finished(held, later) == [wholes[ebb], wholes[tides]]
    assert bench.order.index(later) > last(bench, held), "it waits until there is room for its adapter again"
    await check_nothing_left(bench)


async def test_a_checkpoint_is_its_adapters_alone(adapted: Adapted) -> None:
    bench, tides, stream_id = adapted.bench, adapted.tides, new_stream_id()
    whole = await bench.answer(prompt(3), adapter=tides)
    others = {one: await bench.answer(prompt(3), adapter=one, max_tokens=8) for one in (adapted.ebb, None)}
    request = await bench.submit(prompt(3), adapter=tides, credit=CUT, stream_id=stream_id)
    await bench.held(request)
    await bench.engine.checkpoint([request])
    saved = (300 + CUT - 1) // 32 * 32
    await bench.until_stats(lambda stats: stats.checkpoints.saved_bytes > saved * TOKEN_BYTES)
    await bench.engine.abort([request])
    begun = bench.outputs[request]
    await forget_prefixes(bench)
    before = (await bench.engine.stats()).checkpoints
    for other, expected in others.items():
        request = await bench.submit(prompt(3), adapter=other, ahead=True, stream_id=stream_id, max_tokens=8)
        assert await bench.finished(request) == [expected]
        assert bench.cached_tokens[request] == 0
    after = (await bench.engine.stats()).checkpoints
    assert after.loaded == before.loaded
    assert after.refused["hashes"] >= len(others)
    request = await bench.submit(prompt(3), adapter=tides, ahead=True, stream_id=stream_id, generated_ids=begun)
    (rest,) = await bench.finished(request)
    assert begun + rest == whole
    assert bench.cached_tokens[request] == saved
    assert (await bench.engine.stats()).checkpoints.loaded == before.loaded + 1
    await check_nothing_left(bench)


async def test_an_adapter_is_not_at_fault_when_its_engine_dies(adapted: Adapted, tmp_path: Path) -> None:
    """Last in the file: nothing is left of the engine, and nobody waits for its answer."""
    engine, third = adapted.bench.engine, EngineAdapter(3, "flood", str(tiny_adapter(tmp_path / "flood", seed=3)))
    (process,) = engine_processes()
    process.suspend()
    loading = asyncio.create_task(engine.load_adapter(third))
    unloading = asyncio.create_task(engine.unload_adapter(adapted.ebb.number))
    await asyncio.wait({loading, unloading}, timeout=0.1)
    process.kill()
    async with asyncio.timeout(DEATH_SECONDS):
        with pytest.raises(EngineDeadError):
            await loading
        await unloading
        with pytest.raises(EngineDeadError):
            await engine.load_adapter(third)
