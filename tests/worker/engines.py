"""Engines on their own, without a worker around them, for tests of what the `Engine` protocol promises."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from headrace_wire.messages import FinishReason, SamplingParams
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from headrace_worker.command import create_engine
from headrace_worker.engine import Engine, EngineAdapter, EngineInfo, EngineOutput, EngineRequest, EngineStats
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.process_guard import guard_spawned_children
from headrace_worker.vllm_engine.engine import VllmEngine
from tests.support.snapshots import simulated

WAIT_SECONDS = 60.0
SLOTS = 4
MAX_MODEL_LEN = 512
KV_TOKENS = 1536


class AsyncSchedulingEngine(VllmEngine):
    """vLLM with the scheduling of GPU machines, which it does not choose by itself on a CPU.

    Where there are checkpoints, their connector stands within a MultiConnector, as beside vLLM's offloading.
    """

    def _config(self) -> Any:
        config = super()._config()
        config.scheduler_config.async_scheduling = True
        if (ours := config.kv_transfer_config) is not None:
            names = ("kv_connector", "kv_connector_module_path", "kv_role", "kv_connector_extra_config")
            ours.kv_connector_extra_config = {"connectors": [{name: getattr(ours, name) for name in names}]}
            ours.kv_connector, ours.kv_connector_module_path = "MultiConnector", None
        return config


@dataclass
class EngineBench:
    """A started engine, and everything that it delivered."""

    engine: Engine
    info: EngineInfo
    outputs: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, FinishReason] = field(default_factory=dict)
    cached_tokens: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """Request ids, one per output, as they came."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    listeners: list[Callable[[list[EngineOutput]], None]] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def take(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).extend(output.token_ids)
            self.order.append(output.request_id)
            self.cached_tokens[output.request_id] = max(
                output.cached_tokens, self.cached_tokens.get(output.request_id, 0)
            )
            if output.finish_reason is not None:
                self.ends[output.request_id] = output.finish_reason
        for listener in self.listeners:
            listener(outputs)
        self.changed.set()

    async def submit(
        self,
        prompt_ids: Sequence[int],
        *,
        credit: int = 0,
        generated_ids: Sequence[int] = (),
        ahead: bool = False,
        stream_id: str = "",
        cache_salt: str = "salt",
        adapter: EngineAdapter | None = None,
        **sampling: Any,
    ) -> str:
        """Submit a greedy request (unless `sampling` says otherwise) and return its id."""
        request_id = f"request-{next(self.numbers)}"
        fields: dict[str, Any] = {"max_tokens": 60, "temperature": 0.0, "ignore_eos": True, **sampling}
        self.outputs[request_id] = []
        params = SamplingParams(**fields)
        await self.engine.submit(
            EngineRequest(
                request_id,
                prompt_ids,
                params,
                cache_salt,
                generated_ids,
                credit=credit,
                ahead=ahead,
                tenant_id="tenant" if stream_id else "",
                stream_id=stream_id,
                adapter=adapter,
            )
        )
        return request_id

    async def until(self, found: Callable[[], bool]) -> None:
        """Wait for outputs that make `found` true."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not found():
                self.changed.clear()
                await self.changed.wait()

    async def have(self, count: int, *request_ids: str) -> None:
        """Wait until each request has just so many tokens."""
        await self.until(lambda: all(len(self.outputs[request_id]) == count for request_id in request_ids))

    async def until_stats(self, found: Callable[[EngineStats], bool]) -> EngineStats:
        """Ask the engine, once per step of its, until `found`."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                await asyncio.sleep(0)
                stats = await self.engine.stats()
                if found(stats):
                    return stats

    async def finished(self, *request_ids: str) -> list[list[int]]:
        """Wait for the ends of requests and return their tokens."""
        await self.until(lambda: self.ends.keys() >= set(request_ids))
        return [self.outputs[request_id] for request_id in request_ids]

    async def held(self, *request_ids: str) -> EngineStats:
        """Wait until exactly these are held."""
        return await self.until_stats(lambda stats: {r.request_id for r in stats.held} == set(request_ids))

    async def answer(self, prompt_ids: Sequence[int], **sampling: Any) -> list[int]:
        """Return the undisturbed answer."""
        return (await self.finished(await self.submit(prompt_ids, **sampling)))[0]

    async def idle(self) -> EngineStats:
        """Wait until the engine holds nothing."""
        return await self.until_stats(
            lambda stats: not (stats.num_requests_running or stats.num_requests_waiting or stats.held)
        )


async def check_nothing_left(bench: EngineBench) -> None:
    """Abort what still runs; then the engine holds no request and no block."""
    await bench.engine.abort(sorted(bench.outputs.keys() - bench.ends.keys()))
    stats = await bench.idle()
    assert stats.kv_cache_usage == 0


def engine_processes() -> list[psutil.Process]:
    """Return the processes that engines of this test process run in, and not those of workers that it has started."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has ended between two looks
            if "--deployment" not in child.cmdline():
                family = [child, *child.children(recursive=True)]
                found += [process for process in family if "EngineCore" in process.name()]
    return found


def simulated_processes() -> list[psutil.Process]:
    """Return the children of this test process that simulated engines step in; pids say nothing of their order."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "headrace_worker.simulated_process" in child.cmdline():
                found.append(child)
    return found


def simulated_process() -> psutil.Process:
    """Return the one that there is."""
    (process,) = simulated_processes()
    return process


def contract_deployment(kind: str, tiny_model: Callable[[], Path]) -> DeploymentConfig:
    """Return a small deployment: few slots, and a KV cache for a few long requests."""
    if kind.startswith("simulated"):
        is_process = kind == "simulated-process"
        arguments = {"ttft_ms": 2, "tpot_ms": 1, "kv_tokens": KV_TOKENS, "block_tokens": 32, "process": is_process}
        return simulated("sim", engine_args=arguments, max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN)
    return DeploymentConfig(
        id="tiny",
        name="tiny",
        model=str(tiny_model()),
        engine=EngineKind.VLLM,
        max_num_seqs=SLOTS,
        max_model_len=MAX_MODEL_LEN,
        engine_args={"num_gpu_blocks_override": KV_TOKENS // 32 + 1},
    )


@asynccontextmanager
async def started(
    kind: str, deployment: DeploymentConfig, *, checkpoints: CheckpointSettings | None = None
) -> AsyncIterator[EngineBench]:
    """Start an engine on this event loop, for the length of an `async with`."""
    spec = sys.modules["__main__"].__spec__
    guard_spawned_children()
    if kind == "vllm-async":
        engine: Engine = AsyncSchedulingEngine(deployment, checkpoints=checkpoints)
    else:
        engine = create_engine(deployment, checkpoints)
    placeholder = msgspec.UNSET
    bench = EngineBench(engine, placeholder)  # type: ignore[arg-type]  # known after the start
    try:
        bench.info = await engine.start(bench.take)
        yield bench
    finally:
        await engine.shutdown()
        sys.modules["__main__"].__spec__ = spec
