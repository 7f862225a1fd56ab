"""A soak: answers, cancels and reconnects for minutes, and what becomes of memory and errors meanwhile.

Half of the clients read server-sent events, half speak WebSocket. Of their requests a part is broken off in the middle
(the connection is closed, the stream is cancelled), and a part comes over a connection that is new.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from msgspec import Struct

from tests.load.clients import AnswerFailedError, StreamClient, sse_client, websocket_client
from tests.load.measurements import Processes
from tests.load.peers.arms import MODEL, deployment
from tests.load.peers.endpoint import HOST
from tests.load.peers.environments import Progress
from tests.load.peers.table import Line, Table
from tests.load.placement import Placement
from tests.load.stack import BenchStack, running_stack

SETTLED_SECONDS = 300.0
"""From then on memory may not grow; a shorter soak judges nothing of it."""
_SAMPLE_SECONDS = 2.0
_SAID_SECONDS = 60.0


class SoakLoad(Struct, frozen=True):
    """What is asked."""

    minutes: float = 3.0
    clients: int = 24
    tokens: tuple[int, int] = (20, 100)
    """Of an answer."""
    broken_off: float = 0.15
    """Share of requests that are broken off in the middle."""
    reconnecting: float = 0.15
    """Share of requests before which the client connects anew."""


class SoakFigures(Struct):
    """What it gave."""

    answers: int = 0
    """Complete ones."""
    broken_off: int = 0
    reconnects: int = 0
    errors: list[str] = []
    samples: list[tuple[float, dict[str, float]]] = []
    """Seconds since the start, and RSS in MiB of each process."""

    @property
    def error_share(self) -> float:
        """Errors over requests."""
        return len(self.errors) / max(1, self.answers + self.broken_off + len(self.errors))

    def growth(self, process: str) -> float:
        """Returns MiB per minute, the slope of the settled part; of a short soak, of its second half."""
        settled = min(SETTLED_SECONDS, self.samples[-1][0] / 2)
        points = [(at / 60, rss[process]) for at, rss in self.samples if at >= settled]
        return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else float("nan")


def run_soak(load: SoakLoad, placement: Placement, *, progress: Progress) -> SoakFigures:
    """Soaks one stack."""
    with running_stack(deployment(streams=load.clients, ttft_ms=10, tokens_per_second=100), placement) as stack:
        return asyncio.run(_Soak(load, stack, progress).run())


def soak_table(load: SoakLoad, seen: SoakFigures) -> Table:
    """Returns the table of case 11."""
    is_long = load.minutes * 60 >= 2 * SETTLED_SECONDS
    requests = float(seen.answers + seen.broken_off + len(seen.errors))
    lines = [
        Line("requests", [[requests]], at_least=3000.0 if load.minutes >= 2 else None),
        Line("  broken off in the middle", [[float(seen.broken_off)]]),
        Line("reconnects", [[float(seen.reconnects)]]),
        Line("errors, share", [[seen.error_share]], at_most=0.001),
        *[
            Line(f"{name} RSS growth, MiB per minute", [[seen.growth(name)]], at_most=0.5 if is_long else None)
            for name in ("gateway", "worker")
        ],
        Line("redis RSS growth, MiB per minute", [[seen.growth("redis")]]),
        Line("gateway RSS at the end, MiB", [[seen.samples[-1][1]["gateway"]]]),
    ]
    part = "after 5 minutes" if is_long else "second half; too short to judge, --soak-minutes 20 does"
    return Table(f"Soak of {load.minutes:g} minutes, {load.clients} clients; growth: {part}", [""], lines)


class _Soak:
    def __init__(self, load: SoakLoad, stack: BenchStack, progress: Progress) -> None:
        self._load = load
        self._stack = stack
        self._progress = progress
        self._seen = SoakFigures()
        self._until = 0.0

    async def run(self) -> SoakFigures:
        began = time.perf_counter()
        self._until = began + self._load.minutes * 60
        clients = [asyncio.create_task(self._client(number)) for number in range(self._load.clients)]
        processes, said_at = Processes(self._stack.pids), began
        while (now := time.perf_counter()) < self._until:
            self._seen.samples.append((now - began, processes.rss_mib()))
            if now >= said_at:
                said_at += _SAID_SECONDS
                self._progress(f"soak, {(now - began) / 60:.0f} of {self._load.minutes:g} minutes: {self._told()}")
            await asyncio.sleep(_SAMPLE_SECONDS)
        await asyncio.gather(*clients)
        return self._seen

    def _told(self) -> str:
        return f"{self._seen.answers} answers, {len(self._seen.errors)} errors"

    async def _client(self, number: int) -> None:
        chance = random.Random(number)
        connect: Any = websocket_client if number % 2 else sse_client
        while time.perf_counter() < self._until:
            try:
                async with AsyncExitStack() as opened:
                    client = await opened.enter_async_context(
                        connect(HOST, self._stack.port, model=MODEL, key=self._stack.api_key)
                    )
                    await self._requests(client, chance)
                self._seen.reconnects += 1
            except (AnswerFailedError, OSError, EOFError) as error:
                self._seen.errors.append(f"{type(error).__name__}: {error}"[:300])

    async def _requests(self, client: StreamClient, chance: random.Random) -> None:
        """Asks over one connection until it is to be left."""
        load = self._load
        while time.perf_counter() < self._until:
            tokens = chance.randint(*load.tokens)
            if chance.random() < load.broken_off:
                await self._break_off(client, 2 * tokens, chance.uniform(0.02, 0.3))
                return
            await client.ask(tokens)
            self._seen.answers += 1
            if chance.random() < load.reconnecting:
                return

    async def _break_off(self, client: StreamClient, tokens: int, seconds: float) -> None:
        """Asks, and leaves before the answer is there: whoever called closes the connection."""
        asking = asyncio.create_task(client.ask(tokens))
        done, _ = await asyncio.wait([asking], timeout=seconds)
        if done:
            asking.result()
            self._seen.answers += 1
            return
        asking.cancel()
        await asyncio.wait([asking])
        self._seen.broken_off += 1


def rss_series(seen: SoakFigures, process: str) -> tuple[Sequence[float], Sequence[float]]:
    """Returns minutes and MiB, for a plot."""
    return [at / 60 for at, _ in seen.samples], [rss[process] for _, rss in seen.samples]
