"""KV checkpoints of the real engine: saved, found by another engine, and never the cause of another answer.

Synchronous scheduling, then asynchronous with our connector among several: two engines on the same directory.
"""

import os
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace_wire.checkpoint_folders import stream_folder
from headrace_wire.ids import new_stream_id
from headrace_worker.engine import EngineStats
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from tests.worker.engines import KV_TOKENS, EngineBench, check_nothing_left, contract_deployment, started

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),
]

LEFT_BEHIND = "strm-000000000000000000000001"
"""By each engine, for the next one."""
TOKENS: dict[str, Any] = {"max_tokens": 100}
SEEDED: dict[str, Any] = {"max_tokens": 100, "temperature": 1.0, "seed": 5}
CUT = 40


def prompt(number: int, length: int = 300) -> list[int]:
    return random.Random(number).choices(range(100, 300), k=length)


def files(directory: Path, stream_id: str) -> list[Path]:
    folder = stream_folder(directory, "tenant", stream_id)
    return sorted(folder.iterdir()) if folder.is_dir() else []


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["vllm", "vllm-async"])
async def bench(request: pytest.FixtureRequest, tiny_model: Path, directory: Path) -> AsyncIterator[EngineBench]:
    settings = CheckpointSettings(directory=str(directory), every_tokens=64, every_seconds=1, min_tokens=64)
    deployment = contract_deployment(request.param, lambda: tiny_model)
    async with started(request.param, deployment, checkpoints=settings) as bench:
        yield bench


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_left(bench: EngineBench) -> AsyncIterator[None]:
    """Every test leaves an engine that holds nothing: no request, no block that is pinned for a file."""
    yield
    await check_nothing_left(bench)


async def forget_prefixes(bench: EngineBench) -> None:
    """Have other prompts take all of the KV cache."""
    for number in range(KV_TOKENS // 480 + 1):
        await bench.answer(prompt(1000 + number, 480), max_tokens=1)


async def suspend(bench: EngineBench, stream_id: str, sampling: dict[str, Any], *, number: int) -> list[int]:
    """Begin an answer, save it where it is held, and take it from the engine; return what it has."""
    request = await bench.submit(prompt(number), credit=CUT, stream_id=stream_id, **sampling)
    await bench.held(request)
    await bench.engine.checkpoint([request])
    await bench.engine.abort([request])
    await forget_prefixes(bench)
    return bench.outputs[request]


async def resume(bench: EngineBench, stream_id: str, sampling: dict[str, Any], *, number: int, **fields: Any) -> str:
    """Go on with an answer as its next owner does; return the request."""
    return await bench.submit(prompt(number), ahead=True, stream_id=stream_id, **sampling, **fields)


async def resumed(bench: EngineBench, stream_id: str, begun: list[int], *, number: int) -> tuple[list[int], int]:
    """Go on with a greedy answer; return all of it, and how many requests were loaded meanwhile."""
    before = (await bench.engine.stats()).checkpoints.loaded
    request = await resume(bench, stream_id, TOKENS, number=number, generated_ids=begun)
    (rest,) = await bench.finished(request)
    return begun + rest, (await bench.engine.stats()).checkpoints.loaded - before


async def refusals(bench: EngineBench) -> dict[str, int]:
    return (await bench.engine.stats()).checkpoints.refused


@pytest.mark.parametrize("sampling", [TOKENS, SEEDED], ids=["greedy", "seeded"])
async def test_a_suspended_answer_goes_on_from_its_blocks(bench: EngineBench, sampling: dict[str, Any]) -> None:
    stream_id, whole = new_stream_id(), await bench.answer(prompt(1), **sampling)
    begun = await suspend(bench, stream_id, sampling, number=1)
    assert begun == whole[:CUT]
    before = (await bench.engine.stats()).checkpoints
    request = await resume(bench, stream_id, sampling, number=1, generated_ids=begun)
    (rest,) = await bench.finished(request)
    assert begun + rest == whole
    after = (await bench.engine.stats()).checkpoints
    assert after.loaded == before.loaded + 1
    assert bench.cached_tokens[request] == (300 + CUT - 1) // 32 * 32
    assert after.loaded_bytes - before.loaded_bytes == bench.cached_tokens[request] * 1024


async def test_an_engine_goes_on_with_what_another_one_left(bench: EngineBench, directory: Path) -> None:
    begun = (await bench.answer(prompt(2), **TOKENS))[:CUT]
    whole = await bench.answer(prompt(2), **TOKENS)
    await forget_prefixes(bench)
    was_there = bool(files(directory, LEFT_BEHIND))
    answer, loaded = await resumed(bench, LEFT_BEHIND, begun, number=2)
    assert (answer, loaded) == (whole, int(was_there))
    if not was_there:
        await suspend(bench, LEFT_BEHIND, TOKENS, number=2)
        assert files(directory, LEFT_BEHIND)


async def test_long_answers_are_saved_while_they_run(bench: EngineBench, directory: Path) -> None:
    """Only their new blocks each time; files are for their owner alone."""
    stream_id = new_stream_id()
    whole = await bench.answer(prompt(3, 64), max_tokens=250)
    before = (await bench.engine.stats()).checkpoints
    request = await bench.submit(prompt(3, 64), stream_id=stream_id, max_tokens=250)
    assert await bench.finished(request) == [whole]
    stats = await bench.idle()
    written = stats.checkpoints.saved_bytes - before.saved_bytes
    assert stats.checkpoints.saved > before.saved
    assert written < 314 * 1024 * 1.1, "some blocks were written twice"
    for path in files(directory, stream_id):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_held_answers_are_saved_when_it_is_time(bench: EngineBench, directory: Path) -> None:
    """No step does it: nothing runs."""
    stream_id, before = new_stream_id(), (await bench.engine.stats()).checkpoints.saved
    request = await bench.submit(prompt(8, 100), credit=10, stream_id=stream_id, **TOKENS)
    await bench.held(request)
    await bench.until_stats(lambda stats: stats.checkpoints.saved > before)
    assert files(directory, stream_id)


async def test_a_checkpoint_that_was_removed_begins_anew(bench: EngineBench, directory: Path) -> None:
    """Another worker made room for another stream."""
    stream_id, whole = new_stream_id(), await bench.answer(prompt(9), **TOKENS)
    request = await bench.submit(prompt(9), credit=CUT, stream_id=stream_id, **TOKENS)
    await bench.held(request)
    await bench.engine.checkpoint([request])
    shutil.rmtree(stream_folder(directory, "tenant", stream_id))
    bench.engine.credit({request: 99})
    await bench.have(99, request)
    await bench.engine.checkpoint([request])
    await bench.engine.abort([request])
    await forget_prefixes(bench)
    assert await resumed(bench, stream_id, whole[:99], number=9) == (whole, 1)


@pytest.mark.parametrize("damage", ["block", "header", "cut", "gone"])
async def test_a_damaged_checkpoint_is_computed_again(bench: EngineBench, directory: Path, damage: str) -> None:
    stream_id, whole = new_stream_id(), await bench.answer(prompt(4), **TOKENS)
    begun = await suspend(bench, stream_id, TOKENS, number=4)
    for path in files(directory, stream_id):
        content = bytearray(path.read_bytes())
        if damage == "block":
            content[len(content) // 3] ^= 1
        elif damage == "header":
            content[-40] ^= 1
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    if damage == "gone":
        shutil.rmtree(stream_folder(directory, "tenant", stream_id))
    before = (await refusals(bench)).get("corrupt", 0)
    assert await resumed(bench, stream_id, begun, number=4) == (whole, 0)
    assert ((await refusals(bench)).get("corrupt", 0) > before) == (damage != "gone")


async def test_a_directory_that_hangs_is_not_waited_for(bench: EngineBench, directory: Path) -> None:
    stream_id, whole = new_stream_id(), await bench.answer(prompt(10), **TOKENS)
    begun = await suspend(bench, stream_id, TOKENS, number=10)
    before = (await refusals(bench)).get("unreadable", 0)
    pipe = stream_folder(directory, "tenant", stream_id) / "0.kv"
    os.mkfifo(pipe)  # whoever opens it to read waits for a writer
    assert await resumed(bench, stream_id, begun, number=10) == (whole, 0)
    assert (await refusals(bench))["unreadable"] == before + 1
    pipe.open("wb").close()


async def test_another_salt_and_another_prompt_load_nothing(bench: EngineBench) -> None:
    stream_id, whole = new_stream_id(), await bench.answer(prompt(5), **TOKENS)
    begun = await suspend(bench, stream_id, TOKENS, number=5)
    before = (await bench.engine.stats()).checkpoints.loaded
    request = await resume(bench, stream_id, TOKENS, number=5, generated_ids=begun, cache_salt="of another tenant")
    assert await bench.finished(request) == [whole[CUT:]]
    assert bench.cached_tokens[request] == 0
    other = await bench.answer(prompt(6), **TOKENS)
    request = await resume(bench, stream_id, TOKENS, number=6)
    assert await bench.finished(request) == [other]
    assert (await bench.engine.stats()).checkpoints.loaded == before
    assert (await refusals(bench))["hashes"] >= 2


async def test_aborted_while_it_is_loaded(bench: EngineBench) -> None:
    """The blocks come back, and the next one loads the same."""
    stream_id, whole = new_stream_id(), await bench.answer(prompt(7), **TOKENS)
    begun = await suspend(bench, stream_id, TOKENS, number=7)
    for _ in range(5):
        request = await resume(bench, stream_id, TOKENS, number=7, generated_ids=begun)
        await bench.engine.abort([request])
    assert (await bench.idle()).kv_cache_usage == 0
    answer, _ = await resumed(bench, stream_id, begun, number=7)
    assert answer == whole


async def test_many_streams_are_saved_at_once(bench: EngineBench, directory: Path) -> None:
    """More blocks than may be pinned at a time: those that wait for the files have them all when they are told so."""
    streams = {new_stream_id(): number for number in range(20, 24)}
    requests = [
        await bench.submit(prompt(number, 200), credit=30, stream_id=stream_id, **TOKENS)
        for stream_id, number in streams.items()
    ]
    await bench.held(*requests)
    await bench.engine.checkpoint(requests)
    for stream_id in streams:
        assert sum(path.stat().st_size for path in files(directory, stream_id)) > 229 // 32 * 32 * 1024


async def test_spilled_while_it_is_written(bench: EngineBench) -> None:
    """Held requests lose their blocks to a long prompt, written or not: nothing of it shows in the answers."""
    wholes = {number: await bench.answer(prompt(number), **TOKENS) for number in range(30, 34)}
    requests = {
        number: await bench.submit(prompt(number), credit=CUT, stream_id=new_stream_id(), **TOKENS) for number in wholes
    }
    await bench.held(*requests.values())
    await bench.answer(prompt(35, 500), max_tokens=8)
    stats: EngineStats = await bench.engine.stats()
    assert stats.num_requests_spilled
    bench.engine.credit(dict.fromkeys(requests.values(), 100))
    assert await bench.finished(*requests.values()) == list(wholes.values())
