"""Clients that do not read: what they cost others, and how soon they are served when they read.

1. neighbour: one stream's TPOT with nobody else, and beside `stalled` streams whose clients read nothing; in turn;
2. memory: what the gateway's RSS grew by for each of them;
3. held, spilled, suspended: from a client's acknowledgement, once it has read all, to its next token;
4. cancel: from a stalled client's frame to the terminal entry in the log.

Nothing is pinned: engine, servers and client share the cores.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect

from headrace_wire.fleet import WorkerInfo
from headrace_wire.messages import StreamState
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from headrace_worker.vllm_arguments import CPU_BLOCK_SIZE
from tests.load.clients import SUBPROTOCOL
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.stack import HOST, BenchStack, running_stack
from tests.support.slow_clients import drop
from tests.support.stream_probe import StreamProbe

KV_TOKENS = 20 * 1024
WINDOW = 256
FRAME_SECONDS = 60.0

Progress = Callable[[str], None]


class SlowReaderLoad(Struct, frozen=True):
    """What is asked of the system."""

    model: Path | None
    """A model's folder, for vLLM: nothing is downloaded. None for the simulated engine."""
    stalled: int = 50
    neighbour_tokens: int = 400
    context_tokens: int = 1500
    """About as many has the prompt of a stream that is held, spilled or suspended."""
    hold_seconds: float = 10.0
    """After these a held stream is suspended; all else of a round takes less."""
    max_num_seqs: int = 8

    @property
    def name(self) -> str:
        """The model's public name."""
        return self.model.name.lower() if self.model is not None else "simulated"

    @property
    def deployment(self) -> DeploymentConfig:
        """The model, with a small KV cache."""
        is_real = self.model is not None
        simulated_args = {"ttft_ms": 2, "tpot_ms": 1, "kv_tokens": KV_TOKENS}
        return DeploymentConfig(
            id=self.name,
            name=self.name,
            model=str(self.model),
            engine=EngineKind.VLLM if is_real else EngineKind.SIMULATED,
            engine_args={"num_gpu_blocks_override": KV_TOKENS // CPU_BLOCK_SIZE + 1} if is_real else simulated_args,
            max_model_len=8192,
            max_num_seqs=self.max_num_seqs,
        )


class SlowReaderRound(Struct, frozen=True):
    """What one round gave. Times are seconds."""

    tpot_alone: float
    tpot_beside: float
    gateway_kib_per_stalled: float
    tokens_ahead: int
    """That the engine generated for a client which took none."""
    cancel_seconds: float
    held_seconds: float
    spilled_seconds: float
    suspended_seconds: float

    @property
    def tpot_ratio(self) -> float:
        """What a neighbour feels."""
        return self.tpot_beside / self.tpot_alone


def run_rounds(load: SlowReaderLoad, *, rounds: int, progress: Progress) -> list[SlowReaderRound]:
    """Runs all rounds on one stack."""
    progress(f"{load.name}: starting the engine")
    variables = {
        "HEADRACE_HELD_KV_SHARE": "1",
        "HEADRACE_HELD_KV_SHARE_PER_TENANT": "1",
        "HEADRACE_HOLD_SECONDS": str(load.hold_seconds),
    }
    done = []
    with running_stack(load.deployment, Placement(None, None), variables) as stack:
        one = _Round(load, stack)
        asyncio.run(one.warm_up())
        for number in range(1, rounds + 1):
            progress(f"{load.name}: slow readers, round {number} of {rounds}")
            done.append(asyncio.run(one.run()))
    return done


def table_rows(load: SlowReaderLoad, measured: Sequence[SlowReaderRound]) -> list[Row]:
    """Returns the table's lines."""

    def row(label: str, figure: Callable[[SlowReaderRound], float], *, at_most: float | None = None) -> Row:
        return Row(label, [[figure(one) for one in measured]], at_most)

    return [
        row("neighbour's TPOT alone, ms", lambda one: one.tpot_alone * 1000),
        row(f"neighbour's TPOT beside {load.stalled} stalled, ms", lambda one: one.tpot_beside * 1000),
        row("ratio", lambda one: one.tpot_ratio, at_most=1.10),
        # Later rounds take the memory that the first one gave back to the process.
        Row("gateway RSS per stalled reader, KiB", [[measured[0].gateway_kib_per_stalled]]),
        row("tokens ahead of a stalled reader", lambda one: one.tokens_ahead, at_most=WINDOW),
        row("cancel by a stalled reader, ms", lambda one: one.cancel_seconds * 1000, at_most=100.0),
        row("resumed to next token, held, ms", lambda one: one.held_seconds * 1000),
        row("resumed to next token, spilled, ms", lambda one: one.spilled_seconds * 1000),
        row("resumed to next token, suspended, ms", lambda one: one.suspended_seconds * 1000),
    ]


class _Stream:
    """One stream on a connection of its own."""

    def __init__(self, connection: ClientConnection, stream_id: str) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.seq = 0

    async def next_delta(self) -> int:
        """Returns the position that the next text goes up to; 0 at the end."""
        while True:
            frame = json.loads(await asyncio.wait_for(self.connection.recv(), FRAME_SECONDS))
            if frame["type"] == "delta":
                self.seq = frame["seq"]
                return self.seq
            if frame["type"] == "end":
                return 0
            if frame["type"] == "error":
                raise RuntimeError(str(frame))

    async def send(self, kind: str, **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, "stream_id": self.stream_id, **fields}))

    async def read_to(self, position: int) -> None:
        """Reads without a word of it to the server."""
        while self.seq < position:
            await self.next_delta()


class _Round:
    def __init__(self, load: SlowReaderLoad, stack: BenchStack) -> None:
        self._load = load
        self._stack = stack
        self._probe = StreamProbe(stack.redis_url)
        self._numbers = iter(range(1_000_000))

    async def warm_up(self) -> None:
        """The engine's first steps are slow, and the gateway's first connections take memory that stays."""
        await self._tpot()
        async with self._stalled(10):
            pass

    async def run(self) -> SlowReaderRound:
        gateway = psutil.Process(self._stack.pids["gateway"])
        alone = await self._tpot()
        before = gateway.memory_info().rss
        async with self._stalled(self._load.stalled) as streams:
            beside = await self._tpot()
            grown = gateway.memory_info().rss - before
            ahead = max(self._probe.token_count(stream.stream_id) for stream in streams)
            cancel_seconds = await self._cancel(streams[0])
        held = await self._resumed("held")
        spilled = await self._resumed("spilled")
        suspended = await self._resumed("suspended")
        return SlowReaderRound(
            alone, beside, grown / self._load.stalled / 1024, ahead, cancel_seconds, held, spilled, suspended
        )

    async def _tpot(self) -> float:
        """Returns the mean time of a token of one stream that is read at once."""
        async with self._asked(self._load.neighbour_tokens, "Tell me of the wheel.") as stream:
            arrivals: list[tuple[float, int]] = []
            while position := await stream.next_delta():
                arrivals.append((time.perf_counter(), position))
                await stream.send("ack", seq=position)
        (begin, first), (end, last) = arrivals[0], arrivals[-1]
        return (end - begin) / (last - first)

    async def _cancel(self, stream: _Stream) -> float:
        begin = time.perf_counter()
        await stream.send("cancel")
        await asyncio.to_thread(self._probe.wait_for_end, stream.stream_id)
        return time.perf_counter() - begin

    async def _resumed(self, state: str) -> float:
        """Returns the time from an acknowledgement to the next token of a stream that was in `state`."""
        async with self._asked(4 * WINDOW, self._long_prompt(self._load.context_tokens)) as stream:
            await stream.read_to(WINDOW)
            if state == "held":
                await self._worker_that(lambda info: info.num_requests_held == 1)
            elif state == "spilled":
                await self._fill_the_cache()
                await self._worker_that(lambda info: info.num_requests_spilled == 1)
            else:
                await asyncio.to_thread(self._probe.wait_for_state, stream.stream_id, StreamState.SUSPENDED)
            begin = time.perf_counter()
            await stream.send("ack", seq=WINDOW)
            await stream.next_delta()
            return time.perf_counter() - begin

    async def _fill_the_cache(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(self._ask_in_full(self._long_prompt(KV_TOKENS // 3)))

    async def _ask_in_full(self, prompt: str) -> None:
        # So many that the three run at the same time, also where they come one after another; within the window.
        async with self._asked(WINDOW // 2, prompt) as stream:
            while await stream.next_delta():
                pass

    async def _worker_that(self, found: Callable[[WorkerInfo], bool]) -> None:
        await asyncio.to_thread(self._probe.wait_for_worker, self._load.name, found)

    def _long_prompt(self, tokens: int) -> str:
        """A prompt that begins as no other does, so that none finds another's in the prefix cache."""
        word = "river "  # one token of the model's, and as many as it has bytes of the simulated engine's
        return f"{next(self._numbers)} " + word * (tokens if self._load.model is not None else tokens // len(word))

    @asynccontextmanager
    async def _asked(self, tokens: int, prompt: str, **options: Any) -> AsyncIterator[_Stream]:
        """Asks for a stream; what is left of it at the end is cancelled."""
        headers = {"Authorization": f"Bearer {self._stack.api_key}"}
        connection = await connect(
            f"ws://{HOST}:{self._stack.port}/v1/ws",
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
            additional_headers=headers,
            compression=None,
            ping_interval=None,
            **options,
        )
        request = {"model": self._load.name, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
        await connection.send(json.dumps({"type": "generate", "ignore_eos": True, "temperature": 0, **request}))
        stream = _Stream(connection, json.loads(await connection.recv())["stream_id"])
        try:
            yield stream
        finally:
            await stream.send("cancel")
            await asyncio.to_thread(self._probe.wait_for_end, stream.stream_id)
            await drop(connection)

    @asynccontextmanager
    async def _stalled(self, count: int) -> AsyncIterator[list[_Stream]]:
        """Has so many streams stand at their window, whose clients take one frame and nothing more."""
        async with AsyncExitStack() as cleaning:
            asked = [self._asked(4000, "Say something.", max_queue=1) for _ in range(count)]
            streams = [await cleaning.enter_async_context(one) for one in asked]
            for stream in streams:
                await asyncio.to_thread(self._probe.wait_for_tokens, stream.stream_id, WINDOW, seconds=0.05)
            yield streams
