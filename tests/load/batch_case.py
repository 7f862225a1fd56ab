"""The dynamic batch: how many answers keep both goals while more clients ask than an engine serves quickly.

One simulated engine whose steps take longer with each stream in them, and so many clients that always the largest
batch makes every token late. Each client asks again as soon as it has its answer. The same load for each rule; a rule
has some seconds to find its batch before answers count. An answer keeps the goals when its first token came in time
and its tokens after that came, on average, in time: both as its client saw them.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from msgspec import Struct

from headrace_wire.batch import BatchControl
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.clients import SeenAnswer, SseClient, sse_client
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.stack import HOST, BenchStack, running_stack

ARMS = (BatchControl.OFF, BatchControl.CLASSIC, BatchControl.OBJECTIVES)
TARGET_GAIN = 1.5
"""Answers that keep the goals, by objectives over always the largest batch."""

Progress = Callable[[str], None]


class BatchLoad(Struct, frozen=True):
    """Who asks for what, and what the engine makes of it."""

    clients: int = 64
    answer_tokens: int = 48
    tpot_ms: float = 4.0
    tpot_us_each: float = 1000.0
    tpot_goal_seconds: float = 0.03
    ttft_goal_seconds: float = 4.0
    settle_seconds: float = 12.0
    seconds: float = 10.0

    def deployment(self, control: BatchControl) -> DeploymentConfig:
        """The engine, under a rule."""
        return DeploymentConfig(
            id="bench",
            name="bench",
            model="simulated",
            engine=EngineKind.SIMULATED,
            engine_args={"ttft_ms": 5, "tpot_ms": self.tpot_ms, "tpot_us_each": self.tpot_us_each, "process": True},
            max_model_len=512,
            max_num_seqs=self.clients,
            batch_min=2,
            batch_control=control,
            batch_tpot_goal_seconds=self.tpot_goal_seconds,
            batch_ttft_goal_seconds=self.ttft_goal_seconds,
        )


class BatchArm(Struct, frozen=True):
    """What came of one rule."""

    answers_per_second: float
    kept_per_second: float
    """Of answers that kept both goals."""
    ttft_ms: float
    """Median."""
    tpot_ms: float


class BatchRound(Struct, frozen=True):
    """All rules, one after another."""

    arms: dict[str, BatchArm]


def run_rounds(
    load: BatchLoad,
    placement: Placement,
    *,
    rounds: int,
    arms: Sequence[BatchControl] = ARMS,
    progress: Progress,
) -> list[BatchRound]:
    """Measures each rule of `arms` in each round, on a stack of its own."""
    measured = []
    for number in range(1, rounds + 1):
        seen = {}
        for control in arms:
            progress(f"batch: round {number} of {rounds}, {control.value}")
            with running_stack(load.deployment(control), placement) as stack:
                seen[control.value] = asyncio.run(_ask_all(load, stack))
        measured.append(BatchRound(seen))
    return measured


def table_rows(rounds: Sequence[BatchRound]) -> list[Row]:
    """Returns the rows of the table; its columns are the rules."""

    def column(field: str) -> list[list[float]]:
        return [[getattr(one.arms[control.value], field) for one in rounds] for control in ARMS]

    off, *others = column("kept_per_second")
    gains = [[ours / max(base, 1.0) for ours, base in zip(one, off, strict=True)] for one in others]
    return [
        Row("answers per second", column("answers_per_second")),
        Row("that keep both goals", [off, *others]),
        Row("  over always the largest", [[], *gains], at_least=TARGET_GAIN, judged=len(ARMS) - 1),
        Row("first token, ms", column("ttft_ms")),
        Row("time per token, ms", column("tpot_ms")),
    ]


async def _ask_all(load: BatchLoad, stack: BenchStack) -> BatchArm:
    begin = time.perf_counter() + load.settle_seconds
    end = begin + load.seconds

    async def ask_on(client: SseClient) -> list[SeenAnswer]:
        answers = []
        while time.perf_counter() < end:
            answers.append(await client.ask(load.answer_tokens))
        return answers

    async with AsyncExitStack() as connections:
        clients = [
            await connections.enter_async_context(sse_client(HOST, stack.port, model=stack.model, key=stack.api_key))
            for _ in range(load.clients)
        ]
        seen = await asyncio.gather(*[ask_on(client) for client in clients])
    counted = [one for answers in seen for one in answers if begin <= one.ended_at < end]
    tpots = [(one.arrivals[-1] - one.arrivals[0]) / (load.answer_tokens - 1) for one in counted]
    kept = sum(
        one.ttft_seconds <= load.ttft_goal_seconds and tpot <= load.tpot_goal_seconds
        for one, tpot in zip(counted, tpots, strict=True)
    )
    return BatchArm(
        len(counted) / load.seconds,
        kept / load.seconds,
        statistics.median(one.ttft_seconds for one in counted) * 1000,
        statistics.median(tpots) * 1000,
    )
