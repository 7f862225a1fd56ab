"""LoRA adapters on the real engine: theirs alone get them, exactly as vLLM by itself gives them, and go on exactly."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from headrace_wire.adapters import AdapterConfig, AdapterUse
from headrace_wire.checkpoint_folders import stream_folder
from headrace_wire.fleet import WorkerState
from headrace_wire.messages import StreamState
from tests.support.environment import child_environment
from tests.support.processes import Process
from tests.support.snapshots import publish_snapshot, snapshot
from tests.support.tiny_adapter import adapter_use, tiny_adapter
from tests.worker.conftest import ENGINE_START_SECONDS, engine_children, engine_deployment
from tests.worker.desk import Answer, Desk

pytestmark = pytest.mark.engine

PROMPT = list(range(100, 140))
OTHER = list(range(300, 340))
TOKENS = 40
LONG = [100 + number * 7 % 900 for number in range(320)]
"""Ten blocks, which are worth a checkpoint."""
LONG_BYTES = 320 * 1024
ALL = 2**31 - 1

OFFLINE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

def main():
    llm = LLM(model=sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=2048, block_size=32, max_num_seqs=4,
              enable_lora=True, max_loras=1, max_lora_rank=8, enable_prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=int(sys.argv[3]), ignore_eos=True)
    prompt = {"prompt_token_ids": json.loads(sys.argv[4])}
    adapter = LoRARequest("offline", 1, sys.argv[2])
    for lora in (adapter, None):  # one at a time: that is where vLLM's CPU operations can be trusted
        (answer,) = llm.generate([prompt], params, lora_request=lora, use_tqdm=False)
        print("IDS", json.dumps(list(answer.outputs[0].token_ids)))

if __name__ == "__main__":
    main()
"""


@dataclass
class Adapted:
    """A worker of `tiny` that holds two adapters at once, of three that there are."""

    url: str
    folder: Path
    process: Process
    adapters: dict[str, AdapterUse]

    def checkpoint(self, stream_id: str) -> Path:
        """Return the folder of a stream's checkpoint."""
        return stream_folder(_checkpoints(self.folder), "t", stream_id)

    def is_saved(self, stream_id: str) -> bool:
        """Say whether all of the prompt `LONG` is in a stream's checkpoint."""
        folder = self.checkpoint(stream_id)
        files = folder.glob("[!.]*") if folder.is_dir() else ()
        return sum(path.stat().st_size for path in files) >= LONG_BYTES


def _config(use: AdapterUse) -> AdapterConfig:
    return AdapterConfig(
        id=use.adapter_id,
        tenant_id="t",
        deployment="tiny",
        name=use.name,
        place=use.place,
        revision=use.revision,
    )


def _checkpoints(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-checkpoints")


def _start(url: str, folder: Path) -> Process:
    environ = child_environment(
        REDIS_URL=url,
        HEADRACE_ADAPTER_DIR=str(folder),
        HEADRACE_ENGINE_RESTART_SECONDS="0.1",
        HEADRACE_DRAIN_SECONDS="5",
        HEADRACE_HOLD_SECONDS="0.5",
        HEADRACE_CHECKPOINT_DIR=str(_checkpoints(folder)),
        HEADRACE_CHECKPOINT_MIN_TOKENS="128",
        HEADRACE_CHECKPOINT_TOKENS="64",
    )
    return Process([sys.executable, "-m", "headrace_worker", "--deployment", "tiny"], name="worker", environ=environ)


@pytest.fixture(scope="module")
def adapted(redis_url: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    uses = {}
    for seed, name in enumerate(("tides", "ebb", "flood"), 1):
        tiny_adapter(folder / "acme" / name, seed=seed)
        uses[name] = adapter_use(folder, name)
    options = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 2, "max_lora_rank": 8}

    async def publish() -> None:
        redis = Redis.from_url(redis_url)
        await redis.flushall()
        deployment = engine_deployment(tiny_model, engine_args=options)
        named = [_config(uses["tides"]), _config(uses["ebb"])]
        await publish_snapshot(redis, replace(snapshot(1, deployment), adapters=named))
        await redis.aclose()

    asyncio.run(publish())
    adapted = Adapted(redis_url, folder, _start(redis_url, folder), uses)
    try:
        adapted.process.wait_for_line("engine ready", timeout=ENGINE_START_SECONDS)
        yield adapted
    finally:
        adapted.process.stop()


@asynccontextmanager
async def _desk(adapted: Adapted) -> AsyncIterator[Desk]:
    redis = Redis.from_url(adapted.url)
    desk = Desk(redis)
    try:
        await desk.worker_in(WorkerState.READY, seconds=ENGINE_START_SECONDS)
        yield desk
    finally:
        await redis.aclose()


@pytest.fixture
async def shelf(adapted: Adapted) -> AsyncIterator[Desk]:
    async with _desk(adapted) as desk:
        yield desk


async def _admit(
    desk: Desk,
    use: AdapterUse | None,
    prompt: list[int] = PROMPT,
    *,
    tokens: int = TOKENS,
    window: int = 0,
    salt: str = "",
) -> str:
    return await desk.admit(
        prompt,
        deployment="tiny",
        adapter=use,
        cache_salt=salt or (use.key if use is not None else "base"),
        window=window,
        queue_timeout_seconds=ENGINE_START_SECONDS,
        ttft_timeout_seconds=ENGINE_START_SECONDS,
        temperature=0.0,
        ignore_eos=True,
        max_tokens=tokens,
    )


async def _ids(desk: Desk, stream_id: str) -> list[int]:
    answer: Answer = await desk.answer(stream_id, seconds=ENGINE_START_SECONDS)
    answer.check_order()
    assert answer.end.state is StreamState.FINISHED, answer.end.error
    return await desk.log.token_ids(stream_id)


async def test_answers_are_those_of_vllm_by_itself(shelf: Desk, adapted: Adapted, tiny_model: Path) -> None:
    """Also of the base model beside adapters, which vLLM's CPU operations get wrong: hence the zero adapter."""
    uses = adapted.adapters
    alone = await _ids(shelf, await _admit(shelf, None))
    together = [await _admit(shelf, use) for use in (uses["tides"], None, uses["ebb"], None, uses["tides"])]
    tides, base, ebb, base_again, tides_again = [await _ids(shelf, stream_id) for stream_id in together]
    mixed = [await _admit(shelf, use, OTHER) for use in (None, uses["ebb"])]
    other_base, other_ebb = [await _ids(shelf, stream_id) for stream_id in mixed]
    command = [sys.executable, "-c", OFFLINE, str(tiny_model), str(adapted.folder / "acme/tides"), str(TOKENS)]
    offline = await asyncio.to_thread(
        subprocess.run,
        [*command, json.dumps(PROMPT)],
        env=child_environment(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0"),
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    expected = [json.loads(line[4:]) for line in offline.stdout.splitlines() if line.startswith("IDS ")]
    assert [tides, base] == expected
    assert tides == tides_again
    assert base == base_again == alone
    assert len({tuple(ids) for ids in (tides, base, ebb, other_base, other_ebb)}) == 5
    assert other_base == await _ids(shelf, await _admit(shelf, None, OTHER))


async def test_a_third_adapter_takes_the_place_of_an_idle_one(shelf: Desk, adapted: Adapted) -> None:
    uses = adapted.adapters
    flood = await _ids(shelf, await _admit(shelf, uses["flood"]))
    tides = await _ids(shelf, await _admit(shelf, uses["tides"]))
    ids = [await _admit(shelf, uses[name]) for name in ("flood", "tides", "ebb", "flood")]
    again = [await _ids(shelf, stream_id) for stream_id in ids]
    assert again[0] == again[3] == flood
    assert again[1] == tides
    assert again[2] not in (flood, tides)


async def _suspended(desk: Desk, adapted: Adapted, use: AdapterUse | None, *, salt: str = "") -> str:
    """Return a stream over `LONG` that is suspended in the middle, and saved."""
    stream_id = await _admit(desk, use, LONG, tokens=200, window=100, salt=salt)
    await desk.record_in(stream_id, StreamState.SUSPENDED, seconds=ENGINE_START_SECONDS)
    await desk.worker_that(lambda _: adapted.is_saved(stream_id))
    return stream_id


async def test_a_suspended_stream_goes_on_with_its_adapter_though_others_took_its_place(
    shelf: Desk, adapted: Adapted
) -> None:
    tides, ebb, flood = (adapted.adapters[name] for name in ("tides", "ebb", "flood"))
    expected = await _ids(shelf, await _admit(shelf, tides, LONG, tokens=200))
    stream_id = await _suspended(shelf, adapted, tides)
    for use in (ebb, flood):
        await _ids(shelf, await _admit(shelf, use))
    await shelf.worker_that(lambda info: [report.adapter_id for report in info.adapters] == ["ebb"])
    await shelf.queue.credit([(stream_id, ALL)])
    answer = await shelf.answer(stream_id, seconds=ENGINE_START_SECONDS)
    answer.check_order(owners=2)
    assert await shelf.log.token_ids(stream_id) == expected
    await shelf.worker_that(lambda info: [report.adapter_id for report in info.adapters] == ["tides"])


async def test_files_that_changed_since_their_check_are_refused(shelf: Desk, adapted: Adapted) -> None:
    tiny_adapter(adapted.folder / "acme" / "swapped", seed=9)
    checked = adapter_use(adapted.folder, "swapped")
    tiny_adapter(adapted.folder / "acme" / "swapped", seed=10)
    answer = await shelf.answer(await _admit(shelf, checked))
    assert answer.end.error is not None
    assert answer.end.error.code == "dependency_unavailable"
    assert "not those that were checked" in answer.end.error.message
    assert str(adapted.folder) not in answer.end.error.message


async def test_workers_tell_what_they_have(shelf: Desk, adapted: Adapted) -> None:
    info = await shelf.worker_that(lambda info: len(info.adapters) > 0)
    assert {report.adapter_id for report in info.adapters} <= {"tides", "ebb"}
    assert all(report.problem == "" for report in info.adapters)
    assert info.options


async def test_streams_of_adapters_go_on_exactly_when_their_engine_dies(shelf: Desk, adapted: Adapted) -> None:
    """Last in the file: the engine's second life has none of the first one's adapters and blocks.

    One stream is running, the others are suspended: of more adapters than there is room for, and of none. All but one
    of these find its checkpoint in the place of theirs: of the same prompt, under the same salt, of another adapter.
    """
    tides, salt = adapted.adapters["tides"], "one for all"
    asked = [*adapted.adapters.values(), None]
    expected = [await _ids(shelf, await _admit(shelf, use, LONG, tokens=200, salt=salt)) for use in asked]
    expected.append(await _ids(shelf, await _admit(shelf, tides, LONG[::-1], tokens=300)))
    assert len(set(map(tuple, expected))) == 5
    streams = own, *mistaken = [await _suspended(shelf, adapted, use, salt=salt) for use in asked]
    for stream_id in mistaken:
        shutil.rmtree(adapted.checkpoint(stream_id))
        shutil.copytree(adapted.checkpoint(own), adapted.checkpoint(stream_id))
    running = await _admit(shelf, tides, LONG[::-1], tokens=300, window=250)  # so that it does not end before
    await shelf.first_token(running)
    os.kill(engine_children(adapted.process.pid)[0], signal.SIGKILL)
    await shelf.queue.credit([(stream_id, ALL) for stream_id in (running, *streams)])
    cached = []
    for stream_id, ids in zip((*streams, running), expected, strict=True):
        answer = await shelf.answer(stream_id, seconds=ENGINE_START_SECONDS)
        answer.check_order(owners=None)
        assert answer.end.state is StreamState.FINISHED, answer.end.error
        assert len(answer.starts) >= 2
        assert await shelf.log.token_ids(stream_id) == ids
        cached.append(answer.end.usage.cached_tokens)
    assert cached[0] >= len(LONG) // 2, "its checkpoint: this engine has computed nothing"
    assert cached[1:-1] == [0, 0, 0], "of another adapter"
