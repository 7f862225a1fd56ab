"""The ASGI server alone: ours, which is a subclass of Daphne, and uvicorn, before the same small application."""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from tests.load.peers.arms import Arm
from tests.load.peers.endpoint import HOST
from tests.load.peers.environments import UVICORN_ENVIRONMENT, Progress
from tests.load.peers.server_app import STEP_SECONDS, TTFT_SECONDS
from tests.load.peers.table import Line, Table
from tests.load.peers.token_path import PathFigures, PathLoad, measure
from tests.load.placement import Placement, kept_awake, on_core
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.processes import Process, free_port

OURS, UVICORN, UVICORN_ASYNCIO = "headrace.server", "uvicorn, uvloop", "uvicorn, asyncio"
SERVERS = (OURS, UVICORN, UVICORN_ASYNCIO)
APPLICATION = "tests.load.peers.server_app:application"


class ServersLoad(Struct, frozen=True):
    """What is asked of each server."""

    path: PathLoad = PathLoad(
        streams=32, tokens_per_second=1 / STEP_SECONDS, seconds=4, ttft_ms=TTFT_SECONDS * 1000, beside_seconds=0
    )


def run_rounds(
    load: ServersLoad, placement: Placement, *, rounds: int, progress: Progress
) -> dict[str, list[PathFigures]]:
    """Measures each server so often, in an order that alternates."""
    UVICORN_ENVIRONMENT.ensure(progress=progress)
    seen: dict[str, list[PathFigures]] = {name: [] for name in SERVERS}
    with kept_awake(placement.system, placement.load) as awake, ExitStack() as cleaning:
        arms = [cleaning.enter_context(running_server(name, placement)) for name in SERVERS]
        for number in range(rounds):
            for arm in arms if number % 2 == 0 else arms[::-1]:
                progress(f"server, round {number + 1} of {rounds}: {arm.name}")
                seen[arm.name].append(asyncio.run(measure(load.path, arm, awake)))
    return seen


@contextmanager
def running_server(name: str, placement: Placement) -> Iterator[Arm]:
    """Runs one of the servers on the system's core."""
    port, environ = free_port(), child_environment(DJANGO_SETTINGS_MODULE="headrace.settings.development")
    command: Sequence[str | Path]
    if name == OURS:
        command = (sys.executable, "-m", "headrace.server", "--application", APPLICATION)
        listening = "Listening on"
    else:
        loop = "uvloop" if name == UVICORN else "asyncio"
        command = (UVICORN_ENVIRONMENT.program, APPLICATION, "--loop", loop, "--http", "httptools", "--no-access-log")
        environ = {**environ, "PYTHONPATH": str(REPOSITORY_ROOT)}
        listening = "Uvicorn running on"
    where = ("--host", HOST, "--port", str(port))
    with on_core(placement.system):
        process = Process((*command, *where), name=name, environ=environ, cwd=REPOSITORY_ROOT)
    with process:
        process.wait_for_line(listening)
        yield Arm(name, port, "none", {"gateway": process.pid})


def servers_table(load: ServersLoad, seen: Mapping[str, Sequence[PathFigures]]) -> Table:
    """Returns the table; there is no target, it is for the record."""
    rounds = len(next(iter(seen.values())))
    ttft, step = load.path.ttft_ms, STEP_SECONDS * 1000

    def line(label: str, of: Callable[[PathFigures], float]) -> Line:
        return Line(label, [[of(one) for one in figures] for figures in seen.values()])

    lines = [
        line("plain, c=1, added, p50 ms", lambda one: one.plain.p50 - ttft),
        line("  p99 ms", lambda one: one.plain.p99 - ttft),
        line("added TTFT, 1 stream, p50 ms", lambda one: one.ttft_alone.p50 - ttft),
        line(f"added TTFT, {load.path.streams} at once, p50 ms", lambda one: one.ttft_burst.p50 - ttft),
        line(f"added gap, {load.path.streams} running, p99 ms", lambda one: one.gap.p99 - step),
        line("CPU, running, us per token", lambda one: one.us_per_token["gateway"]),
        line("CPU, whole answers, us per token", lambda one: one.whole_us_per_token["gateway"]),
        line("RSS, MiB", lambda one: one.rss_mib["gateway"]),
        line("others busy, cores", lambda one: one.others_busy),
    ]
    title = f"ASGI servers, one small application, {load.path.streams} streams x {load.path.tokens_per_second:g} tok/s"
    return Table(f"{title}; median [quartiles] of {rounds} rounds", list(seen), lines)
