"""Streams whose client, worker or gateway goes away: how long they stand still, and how soon a gateway is gone.

1. resume: a client that has left comes back with its cursor; from the request to the first event behind it;
2. takeover: one of two workers is killed, and in another stack stopped: how long the longest silence of each of its
   streams was, and that all tokens came;
3. drain: SIGTERM to a gateway with streams that would run for minutes; until its process has ended.

Leases are as short as a worker on a busy machine can keep; a deployment's own are added to each stall.
"""

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import httpx
import psutil
from msgspec import Struct

from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.clients import sse_client
from tests.load.measurements import percentile
from tests.load.peers.token_path import start_all
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.rows import Progress
from tests.load.stack import HOST, BenchStack, running_stack
from tests.support.stream_probe import StreamProbe

MODEL = "bench"
TARGET_KILLED, TARGET_STOPPED = 3.0, 8.0
CURSOR = 10
"""That a reader comes back with."""
END_SECONDS = 60.0


class FailoverLoad(Struct, frozen=True):
    """What is asked."""

    streams: int = 16
    tokens_per_second: float = 50.0
    tokens: int = 400
    """Of each stream that is taken over."""
    resumes: int = 20
    lease_seconds: float = 1.5
    drain_deadline_seconds: float = 5.0
    """Of running streams, before a gateway that drains cuts them."""

    @property
    def deployment(self) -> DeploymentConfig:
        """The simulated engine, with room for all streams on each worker."""
        return DeploymentConfig(
            id=MODEL,
            name=MODEL,
            model="simulated",
            engine=EngineKind.SIMULATED,
            engine_args={"ttft_ms": 10, "tpot_ms": 1000 / self.tokens_per_second},
            max_num_seqs=self.streams,
            default_max_tokens=4096,
        )

    @property
    def variables(self) -> dict[str, str]:
        """What the processes' environment says of it."""
        return {
            "HEADRACE_LEASE_SECONDS": str(self.lease_seconds),
            "HEADRACE_RENEW_SECONDS": str(self.lease_seconds / 5),
        }


class FailoverRound(Struct, frozen=True):
    """Seconds."""

    resumed: list[float]
    killed: list[float]
    """Longest silences of the streams whose worker was killed."""
    stopped: list[float]
    drained: float
    drained_share: float
    """Of the time that it had."""


def run_rounds(load: FailoverLoad, placement: Placement, *, rounds: int, progress: Progress) -> list[FailoverRound]:
    """Runs every part so often, each on a stack of its own."""
    done = []
    for number in range(1, rounds + 1):
        progress(f"resume, round {number} of {rounds}")
        with running_stack(load.deployment, placement, load.variables) as stack:
            resumed = asyncio.run(_resume(load, stack))
        stalls: list[list[float]] = []
        for name in (signal.SIGKILL, signal.SIGSTOP):
            progress(f"{name.name} of a worker, round {number} of {rounds}")
            with running_stack(load.deployment, placement, load.variables, workers=2) as stack:
                stalls.append(asyncio.run(_takeover(load, stack, name)))
        progress(f"drain, round {number} of {rounds}")
        options = ("--drain-deadline-seconds", f"{load.drain_deadline_seconds:g}")
        with running_stack(load.deployment, placement, load.variables, gateway_options=options) as stack:
            drained = asyncio.run(_drain(load, stack))
        killed, stopped = stalls
        done.append(FailoverRound(resumed, killed, stopped, drained, drained / load.drain_deadline_seconds))
    return done


def table_rows(measured: Sequence[FailoverRound]) -> list[Row]:
    """Returns the table's lines."""

    def row(label: str, figure: Callable[[FailoverRound], float], *, at_most: float | None = None) -> Row:
        return Row(label, [[figure(one) for one in measured]], at_most)

    return [
        row("resume to the first event, p50 ms", lambda one: percentile(one.resumed, 0.5) * 1000),
        row("resume to the first event, p95 ms", lambda one: percentile(one.resumed, 0.95) * 1000),
        row("streams of the killed worker", lambda one: len(one.killed)),
        row("  their silence, p50 s", lambda one: percentile(one.killed, 0.5)),
        row("  their silence, p95 s", lambda one: percentile(one.killed, 0.95), at_most=TARGET_KILLED),
        row("streams of the stopped worker", lambda one: len(one.stopped)),
        row("  their silence, p50 s", lambda one: percentile(one.stopped, 0.5)),
        row("  their silence, p95 s", lambda one: percentile(one.stopped, 0.95), at_most=TARGET_STOPPED),
        row("gateway that drains, until it is gone / its deadline", lambda one: one.drained_share, at_most=1.0),
        row("  until it is gone, s", lambda one: one.drained),
    ]


class NothingHappenedError(Exception):
    """No stream was touched by what was done to its worker: there is nothing to measure."""


async def _resume(load: FailoverLoad, stack: BenchStack) -> list[float]:
    """Comes back to running streams, one after another, as a second device does."""
    probe, headers, seconds = StreamProbe(stack.redis_url), {"authorization": f"Bearer {stack.api_key}"}, []
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{stack.port}", headers=headers, timeout=30) as client:
        for _ in range(load.resumes):
            before = probe.stream_ids()
            async with sse_client(HOST, stack.port, model=MODEL, key=stack.api_key) as first_device:
                asking = asyncio.create_task(first_device.ask(CURSOR * 3))
                (stream_id,) = await asyncio.to_thread(probe.wait_for_new_streams, before, 1)
                await asyncio.to_thread(probe.wait_for_tokens, stream_id, CURSOR + 1, seconds=0.0)
                began = time.perf_counter()
                async with client.stream("GET", f"/v1/streams/{stream_id}/events?after={CURSOR}") as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("data: {"):
                            break
                    seconds.append(time.perf_counter() - began)
                await asking
    return seconds


async def _takeover(load: FailoverLoad, stack: BenchStack, what: signal.Signals) -> list[float]:
    """Returns the longest silences of the streams whose worker was struck."""
    async with AsyncExitStack() as opened:
        connect = [sse_client(HOST, stack.port, model=MODEL, key=stack.api_key) for _ in range(load.streams)]
        clients = [await opened.enter_async_context(one) for one in connect]
        running = await start_all(clients, load.tokens / load.tokens_per_second, load.tokens_per_second)
        try:
            os.kill(stack.pids["worker"], what)
            answers = await asyncio.wait_for(asyncio.gather(*running), END_SECONDS)
        finally:
            if what is signal.SIGSTOP:
                os.kill(stack.pids["worker"], signal.SIGCONT)  # or it does not hear that it shall end
    silences = [max(answer.gaps(0.0, math.inf)) for answer in answers]
    struck = [silence for silence in silences if silence > load.lease_seconds / 2]
    if not struck:
        raise NothingHappenedError(f"longest silences: {silences}")
    return struck


async def _drain(load: FailoverLoad, stack: BenchStack) -> float:
    """Returns the seconds from SIGTERM until the gateway's process has ended."""
    gateway = psutil.Process(stack.pids["gateway"])
    async with AsyncExitStack() as opened:
        connect = [sse_client(HOST, stack.port, model=MODEL, key=stack.api_key) for _ in range(load.streams)]
        clients = [await opened.enter_async_context(one) for one in connect]
        running = await start_all(clients, END_SECONDS, load.tokens_per_second)
        began = time.perf_counter()
        gateway.terminate()
        await asyncio.to_thread(_until_gone, gateway)
        seconds = time.perf_counter() - began
        await asyncio.wait(running)
        for each in running:
            each.exception()  # cut in mid-answer, as they were told
    return seconds


def _until_gone(process: psutil.Process) -> None:
    """Return when it has ended; whoever started it learns its status later."""
    deadline = time.monotonic() + END_SECONDS
    while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.02)
