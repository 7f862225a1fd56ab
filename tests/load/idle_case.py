"""After a time without requests: the first token of the next one, beside those of an engine that is busy now and then.

From a request to the gateway until its first token over SSE; every prompt says what was never said before, and is as
long. What Celery does of a deployment's warm-up, the case does: it asks the worker again and again, and the worker
warms its engine where that has done nothing for long enough. Nothing is pinned to cores.
"""

import asyncio
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct, json
from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo
from headrace_wire.functions import Functions
from headrace_wire.messages import WarmUp
from headrace_wire.request_queue import RequestQueue
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.stack import HOST, BenchStack, running_stack
from tests.support.metrics import metric
from tests.support.processes import free_port

TARGET_RATIO = 1.2
IDLE_SECONDS = 600.0
WARM_REQUESTS = 9
ASKED_TIMES = 10
"""How often in an idle time the worker is asked to warm its engine; half of it must have gone by first."""

_WORDS = "water wheel stone corn mill river bank sluice gate channel dam stream flow turn grind carry lead fall rise"

Progress = Callable[[str], None]


class IdleLoad(Struct, frozen=True):
    """What is asked, and for how long nothing is."""

    model: Path | None
    """A model's folder: nothing is downloaded. None for the simulated engine."""
    idle_seconds: float = IDLE_SECONDS
    prompt_words: int = 256

    @property
    def deployment(self) -> DeploymentConfig:
        """The model."""
        name = self.model.name.lower() if self.model is not None else "simulated"
        return DeploymentConfig(
            id=name,
            name=name,
            model=str(self.model),
            engine=EngineKind.VLLM if self.model is not None else EngineKind.SIMULATED,
            engine_args={} if self.model is not None else {"ttft_ms": 20, "tpot_ms": 1},
            max_model_len=2048,
            max_num_seqs=4,
        )


class IdleRound(Struct, frozen=True):
    """One idle time. Times are seconds to the first token."""

    warm: list[float]
    """Of requests right before it, one after the other."""
    after: float
    warm_ups: float
    """How often the engine was warmed meanwhile."""

    @property
    def ratio(self) -> float:
        """How much longer the first request took than those before."""
        return self.after / statistics.median(self.warm)


def run_rounds(load: IdleLoad, *, rounds: int, progress: Progress) -> list[IdleRound]:
    """Measures all rounds on one stack."""
    progress(f"idle: starting {load.deployment.name}")
    port = free_port()
    done = []
    with running_stack(load.deployment, Placement(None, None), {"HEADRACE_METRICS_PORT": str(port)}) as stack:
        asking = _Asking(load, stack)
        asking.ask()  # the first of a gateway that has just started
        for number in range(1, rounds + 1):
            progress(f"idle: {load.idle_seconds:g} s of {load.deployment.name}, round {number} of {rounds}")
            before = _warm_ups(port)
            warm = [asking.ask() for _ in range(WARM_REQUESTS)]
            asyncio.run(_idle(load, stack))
            done.append(IdleRound(warm, asking.ask(), _warm_ups(port) - before))
    return done


def table_rows(measured: Sequence[IdleRound]) -> list[Row]:
    """Returns the table's lines."""
    return [
        Row("TTFT, warm, median, ms", [[statistics.median(one.warm) * 1000 for one in measured]]),
        Row("TTFT, warm, longest, ms", [[max(one.warm) * 1000 for one in measured]]),
        Row("TTFT, first after idle, ms", [[one.after * 1000 for one in measured]]),
        Row("ratio to the warm median", [[one.ratio for one in measured]], TARGET_RATIO),
        Row("warm-ups meanwhile", [[one.warm_ups for one in measured]], at_least=1),
    ]


class _Asking:
    def __init__(self, load: IdleLoad, stack: BenchStack) -> None:
        self._load = load
        self._url = f"http://{HOST}:{stack.port}/v1/chat/completions"
        self._model = stack.model
        self._headers = {"authorization": f"Bearer {stack.api_key}"}
        self._random = random.Random("idle")

    def ask(self) -> float:
        """Asks something new, on a connection of its own; returns when the first token came."""
        text = " ".join(self._random.choices(_WORDS.split(), k=self._load.prompt_words))
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 2,
            "temperature": 0,
            "stream": True,
        }
        began, first = time.perf_counter(), math.nan
        with httpx.stream("POST", self._url, json=body, headers=self._headers, timeout=120) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.decode(line.removeprefix("data: "))
                if math.isnan(first) and any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                    first = time.perf_counter() - began
        if math.isnan(first):
            raise RuntimeError(f"no answer: {answer.status_code}")
        return first


async def _idle(load: IdleLoad, stack: BenchStack) -> None:
    """Wait, and have the worker look now and then whether it has been idle for long enough."""
    async with Redis.from_url(stack.redis_url) as redis:
        queue = RequestQueue(redis, Functions(redis))
        rows: Any = await redis.hvals(redis_keys.workers_key())
        workers = [codec.decode(raw, WorkerInfo).incarnation for raw in rows]
        for _ in range(ASKED_TIMES):
            await asyncio.sleep(load.idle_seconds / ASKED_TIMES)
            await queue.tell([(f"@{worker}", WarmUp(load.idle_seconds / 2)) for worker in workers])


def _warm_ups(port: int) -> float:
    return metric(f"http://{HOST}:{port}", "headrace_worker_warm_ups_total")
