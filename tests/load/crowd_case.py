"""More clients than a gateway may serve: who is served, how soon the others are refused, what one open stream costs.

Clients come one after another, each asks for a stream over a connection of its own, and all stay until the last one has
been answered and everybody who is served has been so for `seconds`.
"""

import asyncio
import contextlib
import json
import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import psutil
from msgspec import Struct

from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.clients import PROMPT
from tests.load.measurements import Spread
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.stack import HOST, BenchStack, running_stack

MODEL = "crowd"
ANSWER_SECONDS = 60.0
"""How long the crowd waits for all of its first answers."""
SERVED, REFUSED = 200, 503
CONTENT = b'"content":"'

Progress = Callable[[str], None]


class CrowdLoad(Struct, frozen=True):
    """What is asked of the gateway."""

    workers: int = 8
    """Whose steps come at different times: one engine would give all streams their tokens in the same moment."""
    limit: int = 2048
    """Streams that it may serve; all of them at once."""
    clients: int = 2300
    tokens_per_second: float = 2.0
    """Of each stream."""
    ramp_per_second: float = 150.0
    seconds: float = 20.0
    """How long gaps are measured once all have been answered."""

    @property
    def deployment(self) -> DeploymentConfig:
        """The simulated engine."""
        return DeploymentConfig(
            id=MODEL,
            name=MODEL,
            model="simulated",
            engine=EngineKind.SIMULATED,
            engine_args={"ttft_ms": 5, "tpot_ms": 1000 / self.tokens_per_second},
            max_num_seqs=math.ceil(self.limit / self.workers) + 1,
            queue_limit=2 * self.clients,
            default_max_tokens=4096,
        )

    @property
    def variables(self) -> dict[str, str]:
        """What the processes' environment says of it."""
        return {"HEADRACE_SOFT_STREAMS": str(self.limit), "HEADRACE_MAX_STREAMS": str(self.limit)}


class CrowdRound(Struct, frozen=True):
    """What one crowd saw."""

    statuses: dict[int, int]
    errors: int
    """Clients that were neither served up to the end nor refused as they should be."""
    refusal: Spread
    """From the request to the head of its answer."""
    first_answer: Spread
    """The same, of those that are served."""
    gap: Spread
    """Between two messages of a stream that bring tokens."""
    gap_ratio: float
    """p99 of the gaps over the engine's own time for a token."""
    gateway_kib_per_stream: float

    @property
    def error_share(self) -> float:
        """Errors over clients."""
        return self.errors / sum(self.statuses.values())


@dataclass(slots=True)
class _Client:
    status: int = 0
    has_retry_time: bool = False
    asked_at: float = 0.0
    answered_at: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    is_broken: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def seconds(self) -> float:
        return self.answered_at - self.asked_at

    @property
    def is_wrong(self) -> bool:
        if self.status == SERVED:
            return self.is_broken or not self.arrivals
        return self.status != REFUSED or not self.has_retry_time


def run_rounds(load: CrowdLoad, *, rounds: int, progress: Progress) -> list[CrowdRound]:
    """Runs `rounds` crowds, each on a stack of its own, so that memory is what one crowd takes."""
    done = []
    for number in range(1, rounds + 1):
        progress(f"crowd of {load.clients}, round {number} of {rounds}")
        with running_stack(load.deployment, Placement(None, None), load.variables, workers=load.workers) as stack:
            done.append(asyncio.run(run_crowd(load, stack)))
    return done


def table_rows(load: CrowdLoad, measured: Sequence[CrowdRound]) -> list[Row]:
    """Returns the table's lines."""

    def row(label: str, figure: Callable[[CrowdRound], float], *, at_most: float | None = None) -> Row:
        return Row(label, [[figure(one) for one in measured]], at_most)

    return [
        row("served", lambda one: one.statuses.get(SERVED, 0)),
        row("refused", lambda one: one.statuses.get(REFUSED, 0)),
        row("errors, share", lambda one: one.error_share, at_most=0.001),
        row("refusal, p50 ms", lambda one: one.refusal.p50),
        row("refusal, p99 ms", lambda one: one.refusal.p99, at_most=50.0),
        row("first answer of the served, p99 ms", lambda one: one.first_answer.p99),
        row(f"gap p99 / {1000 / load.tokens_per_second:g} ms", lambda one: one.gap_ratio, at_most=1.2),
        row("gateway RSS per open stream, KiB", lambda one: one.gateway_kib_per_stream),
    ]


async def run_crowd(load: CrowdLoad, stack: BenchStack) -> CrowdRound:
    """Sends one crowd."""
    _allow_descriptors(load.clients + 1000)
    gateway = psutil.Process(stack.pids["gateway"])
    idle_bytes = gateway.memory_info().rss
    clients, leaving = [_Client() for _ in range(load.clients)], asyncio.Event()
    tasks = []
    for client in clients:
        tasks.append(asyncio.create_task(_visit(client, stack, leaving)))
        await asyncio.sleep(1 / load.ramp_per_second)
    async with asyncio.timeout(ANSWER_SECONDS):
        await asyncio.gather(*[client.answered.wait() for client in clients])
    begin = time.perf_counter()
    await asyncio.sleep(load.seconds)
    open_bytes = gateway.memory_info().rss
    leaving.set()
    await asyncio.gather(*tasks)
    served = [client for client in clients if client.status == SERVED]
    gaps = [
        after - before
        for client in served
        for before, after in pairwise(client.arrivals)
        if before >= begin and after <= begin + load.seconds
    ]
    gap = Spread.of_seconds(gaps)
    return CrowdRound(
        dict(Counter(client.status for client in clients)),
        sum(client.is_wrong for client in clients),
        Spread.of_seconds(client.seconds for client in clients if client.status == REFUSED),
        Spread.of_seconds(client.seconds for client in served),
        gap,
        gap.p99 / (1000 / load.tokens_per_second),
        (open_bytes - idle_bytes) / max(1, len(served)) / 1024,
    )


async def _visit(client: _Client, stack: BenchStack, leaving: asyncio.Event) -> None:
    """Ask, and read until told to leave; whatever goes wrong is noted."""
    try:
        reader, writer = await asyncio.open_connection(HOST, stack.port)
    except OSError:
        client.answered.set()
        return
    try:
        await _ask(client, stack, reader, writer)
        if client.status == SERVED:
            reading = asyncio.create_task(_read(client, reader))
            until = asyncio.create_task(leaving.wait())
            await asyncio.wait({reading, until}, return_when=asyncio.FIRST_COMPLETED)
            client.is_broken = reading.done()  # the answer is longer than anybody stays
            reading.cancel()
            until.cancel()
            await asyncio.gather(reading, until, return_exceptions=True)
    except (OSError, asyncio.IncompleteReadError):
        client.is_broken = True
    finally:
        client.answered.set()
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _ask(client: _Client, stack: BenchStack, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = {
        "model": stack.model,
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "max_tokens": 4000,
        "ignore_eos": True,
    }
    body = json.dumps(request).encode()
    client.asked_at = time.perf_counter()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: crowd\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (stack.api_key.encode(), len(body), body)
    )
    head = await reader.readuntil(b"\r\n\r\n")
    client.answered_at = time.perf_counter()
    client.status = int(head.split(maxsplit=2)[1])
    client.has_retry_time = b"\r\nretry-after: " in head.lower()
    client.answered.set()


async def _read(client: _Client, reader: asyncio.StreamReader) -> None:
    while chunk := await reader.read(65536):
        if CONTENT in chunk:
            client.arrivals.append(time.perf_counter())


def _allow_descriptors(wanted: int) -> None:
    """Raises this process's own limit as far as it may; the gateway does the same for itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
