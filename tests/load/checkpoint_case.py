"""KV checkpoints: how long a stream stands still that another engine goes on with, with its checkpoint and without.

From the request to the engine until its next token, of an engine that runs nothing else and whose prefix cache is
empty, as another worker's is. The answer is asked for in the same way both times: a prompt, and the tokens it has. The
file was read a moment ago, or written: it comes from the operating system's memory.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from headrace_wire.ids import new_stream_id
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from tests.load.report import Row
from tests.worker.engines import EngineBench, started

TARGET_RATIO = 0.3

Progress = Callable[[str], None]


class CheckpointLoad(Struct, frozen=True):
    """What is suspended and resumed."""

    model: Path
    """A model's folder: nothing is downloaded."""
    context_tokens: int = 1500
    generated_tokens: int = 20
    """Of these, the rest is the prompt."""

    @property
    def deployment(self) -> DeploymentConfig:
        """The model, with room for a few such contexts."""
        name = self.model.name.lower()
        return DeploymentConfig(
            id=name, name=name, model=str(self.model), engine=EngineKind.VLLM, max_model_len=2048, max_num_seqs=4
        )


class CheckpointRound(Struct, frozen=True):
    """One stream, resumed in both ways."""

    recomputed_seconds: float
    loaded_seconds: float
    saved_seconds: float
    """From the request to save until the file is there; the engine runs meanwhile."""
    saved_mib: float
    loaded_tokens: int

    @property
    def ratio(self) -> float:
        """How much of the time is left."""
        return self.loaded_seconds / self.recomputed_seconds


class NotComparableError(Exception):
    """The two ways did not do the same work: an answer differs, or a prefix was not where it should be."""


def run_rounds(load: CheckpointLoad, *, rounds: int, progress: Progress) -> list[CheckpointRound]:
    """Measures `rounds` streams, on one engine."""
    return asyncio.run(_run(load, rounds, progress))


def table_rows(measured: Sequence[CheckpointRound]) -> list[Row]:
    """Returns the table's lines."""
    return [
        Row("next token, recomputed, s", [[one.recomputed_seconds for one in measured]]),
        Row("next token, from the checkpoint, s", [[one.loaded_seconds for one in measured]]),
        Row("ratio", [[one.ratio for one in measured]], at_most=TARGET_RATIO),
        Row("to save it, s", [[one.saved_seconds for one in measured]]),
        Row("its size, MiB", [[one.saved_mib for one in measured]]),
        Row("tokens loaded", [[float(one.loaded_tokens) for one in measured]]),
    ]


async def _run(load: CheckpointLoad, rounds: int, progress: Progress) -> list[CheckpointRound]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        settings = CheckpointSettings(directory=folder, every_seconds=3600, every_tokens=1 << 20)
        progress(f"checkpoints: starting {load.model.name}")
        async with started("vllm", load.deployment, checkpoints=settings) as bench:
            await bench.answer(_prompt(load, seed=0), max_tokens=2)  # its first long prompt takes longer
            measured = []
            for number in range(1, rounds + 1):
                progress(f"checkpoints: {load.context_tokens} tokens of {load.model.name}, round {number} of {rounds}")
                measured.append(await _measure(bench, load, number))
            return measured


async def _measure(bench: EngineBench, load: CheckpointLoad, number: int) -> CheckpointRound:
    stream_id, prompt = new_stream_id(), _prompt(load, seed=number)
    before = (await bench.engine.stats()).checkpoints
    request = await bench.submit(prompt, credit=load.generated_tokens, stream_id=stream_id, max_tokens=100)
    await bench.held(request)
    began = time.perf_counter()
    await bench.engine.checkpoint([request])
    saved_seconds = time.perf_counter() - began
    await bench.engine.abort([request])
    saved = (await bench.engine.stats()).checkpoints
    ways = [(stream_id, "loaded"), (new_stream_id(), "recomputed")]
    seconds: dict[str, float] = {}
    cached: dict[str, int] = {}
    rest: dict[str, list[int]] = {}
    for owner, way in ways if number % 2 else reversed(ways):
        seconds[way], cached[way], rest[way] = await _resume(bench, prompt, bench.outputs[request], owner)
    if rest["loaded"] != rest["recomputed"] or cached["recomputed"] or not cached["loaded"]:
        raise NotComparableError(f"cached tokens {cached}, answers {rest}")
    size = (saved.saved_bytes - before.saved_bytes) / 2**20
    return CheckpointRound(seconds["recomputed"], seconds["loaded"], saved_seconds, size, cached["loaded"])


async def _resume(
    bench: EngineBench, prompt: list[int], generated: list[int], stream_id: str
) -> tuple[float, int, list[int]]:
    """Goes on with an answer; returns the seconds to its next token, how many tokens were cached, and the rest."""
    engine: Any = bench.engine
    await bench.idle()
    await engine._llm.reset_prefix_cache()  # in place of a second engine
    began = time.perf_counter()
    request = await bench.submit(
        prompt, generated_ids=generated, ahead=True, stream_id=stream_id, max_tokens=len(generated) + 5
    )
    await bench.until(lambda: bool(bench.outputs[request]))
    seconds = time.perf_counter() - began
    (rest,) = await bench.finished(request)
    return seconds, bench.cached_tokens[request], rest


def _prompt(load: CheckpointLoad, *, seed: int) -> list[int]:
    return random.Random(seed).choices(range(200, 20_000), k=load.context_tokens - load.generated_tokens)
