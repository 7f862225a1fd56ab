"""Marks in absolute numbers, with their load: locust's classic test, and as many short answers as one gateway gives.

They speak of this machine. What the marks need beside a fast gateway (an engine that gives a token every 2 ms, more
than one core for 1,000 requests a second) is said in the tables, and a missed mark stays in them.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from tests.load.measurements import Processes, percentile
from tests.load.peers.arms import HEADRACE, MODEL, Arm, deployment
from tests.load.peers.endpoint import HOST
from tests.load.peers.environments import LOCUST_ENVIRONMENT, Progress
from tests.load.peers.table import Line, Table
from tests.load.peers.token_path import connections
from tests.load.placement import Placement, kept_awake
from tests.load.stack import BenchStack, running_stack
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.processes import Process


class SloLoad(Struct, frozen=True):
    """What is asked."""

    users: int = 50
    seconds: float = 40.0
    ttft_ms: float = 10.0
    """The engine's own."""
    tpot_ms: float = 2.0
    """The engine's own: 200 tokens in 500 ms after a first token at 100 ms leave 2.0 ms for each."""
    connections: int = 64
    """That ask for one short answer after another."""
    short_seconds: float = 10.0


class SloFigures(Struct, frozen=True):
    """What it gave; milliseconds."""

    seconds: float
    ttft_ms: list[float]
    tpot_ms: list[float]
    answer_ms: list[float]
    errors: list[str]
    short_ms: list[float]
    """Of short answers in one piece."""
    short_per_second: float
    gateway_busy: float
    """Share of a core while short answers are asked for."""


class LocustFailedError(Exception):
    """It gave no figures. The message is the end of its log."""


def run_slo(load: SloLoad, placement: Placement, *, progress: Progress) -> SloFigures:
    """Runs both tests on one stack."""
    program = LOCUST_ENVIRONMENT.ensure(progress=progress)
    slots = max(load.users, load.connections)
    engine = deployment(streams=slots, ttft_ms=load.ttft_ms, tokens_per_second=1000 / load.tpot_ms)
    with kept_awake(placement.system, placement.load), running_stack(engine, placement) as stack:
        progress(f"locust: {load.users} users for {load.seconds:g} s")
        began = time.perf_counter()
        figures = _locust(load, program, stack)
        seconds = time.perf_counter() - began
        progress(f"short answers over {load.connections} connections")
        short_ms, per_second, busy = asyncio.run(_short_answers(load, stack))
    return SloFigures(seconds, short_ms=short_ms, short_per_second=per_second, gateway_busy=busy, **figures)


def slo_tables(load: SloLoad, seen: SloFigures, machine: str) -> list[Table]:
    """Returns the table of the classic test and the one of the service levels."""
    requests = len(seen.answer_ms) + len(seen.errors)
    errors = len(seen.errors) / max(1, requests)

    def at(values: Sequence[float], share: float) -> list[list[float]]:
        return [[percentile(values, share)]]

    classic = [
        Line("TTFT p50, ms", at(seen.ttft_ms, 0.5), at_most=100.0),
        Line("TTFT p95, ms", at(seen.ttft_ms, 0.95), at_most=100.0),
        Line("TPOT p50, ms", at(seen.tpot_ms, 0.5), at_most=3.0),
        Line("TPOT p95, ms", at(seen.tpot_ms, 0.95), at_most=3.0),
        Line("200 tokens, p95 ms", at(seen.answer_ms, 0.95), at_most=500.0),
        Line("requests per minute", [[requests / seen.seconds * 60]], at_least=100.0),
        Line("errors, share", [[errors]], at_most=0.001),
    ]
    levels = [
        Line("first token, p50 ms", at(seen.ttft_ms, 0.5), at_most=200.0),
        Line("TTFT p95, ms", at(seen.ttft_ms, 0.95), at_most=500.0),
        Line("TTFT p99, ms", at(seen.ttft_ms, 0.99), at_most=2000.0),
        Line("added to the engine's TTFT, p99 ms", at([one - load.ttft_ms for one in seen.ttft_ms], 0.99), at_most=300),
        Line("short answers per second", [[seen.short_per_second]], at_least=1000.0),
        Line("  their p99, ms", at(seen.short_ms, 0.99), at_most=500.0),
        Line("  the gateway's share of its core", [[seen.gateway_busy]]),
    ]
    users = (
        f"{load.users} users, prompts of 50-200 characters, 200 tokens, 1-3 s between two, engine's TTFT "
        f"{load.ttft_ms:g} and TPOT {load.tpot_ms:g} ms"
    )
    return [
        Table(f"Locust: {users}; {machine}", [""], classic),
        Table(
            f"Service levels: the same users; short answers over {load.connections} connections, everything but the "
            f"client on one core; {machine}",
            [""],
            levels,
        ),
    ]


def _locust(load: SloLoad, program: Path, stack: BenchStack) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        figures = Path(folder) / "figures.json"
        options = {
            "locustfile": REPOSITORY_ROOT / "tests" / "load" / "locustfile.py",
            "host": f"http://{HOST}:{stack.port}",
            "model": MODEL,
            "key": stack.api_key,
            "users": load.users,
            "spawn-rate": load.users,
            "run-time": f"{load.seconds:g}s",
            "stop-timeout": 5,
            "figures": figures,
        }
        pairs = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        environ = {name: value for name, value in child_environment().items() if name != "PYTHONPATH"}
        command = [str(program), "--headless", "--only-summary", *pairs]
        with Process(command, name="locust", environ=environ, cwd=Path(folder)) as process:
            process.wait(timeout=load.seconds + 60)
            log = process.log
        if not figures.exists():
            raise LocustFailedError(log[-2000:])
        read: dict[str, Any] = json.loads(figures.read_text("utf-8"))
        return read


async def _short_answers(load: SloLoad, stack: BenchStack) -> tuple[list[float], float, float]:
    """Returns what each took in ms, how many there were per second, and the gateway's share of its core."""
    arm = Arm(HEADRACE, stack.port, stack.api_key, stack.pids)
    gateway = Processes({"gateway": psutil.Process(stack.pids["gateway"]).pid})
    seen: list[float] = []
    async with connections(arm, load.connections) as clients:
        await asyncio.gather(*[client.ask_plain(1) for client in clients])
        gateway.take()
        began = time.perf_counter()

        async def keep_asking(number: int) -> None:
            while time.perf_counter() < began + load.short_seconds:
                seen.append(await clients[number].ask_plain(1) * 1000)

        await asyncio.gather(*map(keep_asking, range(len(clients))))
        seconds = time.perf_counter() - began
    return seen, len(seen) / seconds, gateway.take()["gateway"] / seconds
