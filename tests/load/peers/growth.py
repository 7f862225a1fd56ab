"""What sixty times as many streams cost, the same number of tokens in all: CPU per token, memory, idle connections.

Headrace alone, a fresh stack for each measurement, so that memory is what these streams take. The engine steps all its
streams at once: of 1,024 streams, each step brings 1,024 tokens in the same moment.
"""

import asyncio
import time
from collections.abc import Sequence

import psutil
from msgspec import Struct

from tests.load.crowd_case import allow_descriptors
from tests.load.measurements import Processes
from tests.load.peers.arms import HEADRACE, Arm, deployment
from tests.load.peers.environments import Progress
from tests.load.peers.table import Line, Table
from tests.load.peers.token_path import connections, start_all
from tests.load.placement import Placement, kept_awake
from tests.load.stack import running_stack

LIMITS = {"HEADRACE_SOFT_STREAMS": "2048", "HEADRACE_MAX_STREAMS": "2048"}
WARM_UP = 8
_RAMP_SECONDS = 10.0
"""Longest that all streams may take to begin."""


class GrowthLoad(Struct, frozen=True):
    """What is asked."""

    streams: tuple[int, int] = (16, 1024)
    tokens_per_second: float = 2000.0
    """Of all streams together."""
    seconds: float = 8.0
    idle_seconds: float = 4.0


class GrowthFigures(Struct, frozen=True):
    """One measurement."""

    streams: int
    tokens_per_second: float
    us_per_token: dict[str, float]
    kib_per_stream: float
    """What the gateway grew by from its first connections until all streams ran."""
    idle_share: float
    """Of a core, the gateway while all connections are open and nobody asks."""
    load_core_busy: float


def run_rounds(load: GrowthLoad, placement: Placement, *, rounds: int, progress: Progress) -> list[list[GrowthFigures]]:
    """Measures few and many streams in turn."""
    done: list[list[GrowthFigures]] = []
    with kept_awake(placement.system, placement.load):
        for number in range(1, rounds + 1):
            done.append([])
            for streams in load.streams:
                progress(f"growth, round {number} of {rounds}: {streams} streams")
                engine = deployment(
                    streams=streams + WARM_UP, ttft_ms=10, tokens_per_second=load.tokens_per_second / streams
                )
                with running_stack(engine, placement, LIMITS) as stack:
                    arm = Arm(HEADRACE, stack.port, stack.api_key, stack.pids, stack.engine_pids)
                    done[-1].append(asyncio.run(_measure(load, arm, streams)))
    return done


def growth_table(load: GrowthLoad, rounds: Sequence[Sequence[GrowthFigures]]) -> Table:
    """Returns the table of case 4."""
    few, many = ([one[i] for one in rounds] for i in (0, 1))

    def costs(name: str) -> list[list[float]]:
        return [[one.us_per_token[name] for one in column] for column in (few, many)]

    def grown(columns: Sequence[Sequence[float]]) -> list[float]:
        return [last / first for first, last in zip(*columns, strict=True)]

    gateway, system = costs("gateway"), [[sum(one.us_per_token.values()) for one in column] for column in (few, many)]
    lines = [
        Line("gateway CPU, us per token", gateway, grown(gateway), at_most=1.25),
        Line("system CPU, us per token", system, grown(system), at_most=1.25),
        Line("gateway RSS per stream, KiB", [[], [one.kib_per_stream for one in many]], at_most=100.0, judged_column=1),
        Line(
            "gateway, idle connections, share of a core",
            [[one.idle_share for one in column] for column in (few, many)],
            at_most=0.05,
            judged_column=1,
        ),
        Line("tokens per second", [[one.tokens_per_second for one in column] for column in (few, many)]),
        Line("load core busy, share", [[one.load_core_busy for one in column] for column in (few, many)]),
    ]
    title = f"Growth at {load.tokens_per_second:g} tok/s in all, Headrace; median [quartiles] of {len(rounds)} rounds"
    return Table(title, [f"{count:,} streams" for count in load.streams], lines)


async def _measure(load: GrowthLoad, arm: Arm, streams: int) -> GrowthFigures:
    allow_descriptors(2 * streams + 1000)
    gateway = psutil.Process(arm.pids["gateway"])
    system = Processes(arm.pids)
    load_core = Processes({"client": psutil.Process().pid, **{str(pid): pid for pid in arm.engine_pids}})
    each = load.tokens_per_second / streams
    async with connections(arm, WARM_UP) as first:
        await asyncio.gather(*[client.ask(2) for client in first])
        before = gateway.memory_info().rss
        async with connections(arm, streams) as clients:
            system.take()
            began = time.perf_counter()
            await asyncio.sleep(load.idle_seconds)
            idle = system.take()["gateway"] / (time.perf_counter() - began)
            running = await start_all(clients, load.seconds + min(_RAMP_SECONDS, 4 + streams / 64), each)
            begin = time.perf_counter()
            system.take()
            load_core.take()
            await asyncio.sleep(load.seconds)
            end, used, busy = time.perf_counter(), system.take(), sum(load_core.take().values())
            after = gateway.memory_info().rss
            answers = await asyncio.gather(*running)
    tokens = max(1, sum(answer.tokens_within(begin, end) for answer in answers))
    return GrowthFigures(
        streams,
        tokens / (end - begin),
        {name: seconds / tokens * 1e6 for name, seconds in used.items()},
        (after - before) / streams / 1024,
        idle,
        busy / (end - begin),
    )
