"""The floor: what a program that does nothing but carry tokens takes for each of them, on this machine and this day.

A bare asyncio process on the core of the system under test reads one message for each step of the engine, decodes it,
and writes a frame of Server-Sent Events to each client. It checks no key, keeps no log and counts nothing: no gateway
in Python can take less.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.load.measurements import cpu_seconds
from tests.load.placement import Placement, kept_awake, on_core
from tests.load.report import Row
from tests.support.environment import child_environment

HOST = "127.0.0.1"
WARM_UP_SECONDS = 2.0
_SIZE_BYTES = 4
_DEADLINE_SECONDS = 60.0

Progress = Callable[[str], None]


class FloorLoad(Struct, frozen=True):
    """What is carried: as much as in `path`."""

    streams: int = 32
    tokens_per_second: float = 50.0
    seconds: float = 4.0


class FloorRound(Struct, frozen=True):
    """What one span of time gave."""

    tokens: int
    cpu_us_per_token: float


class _Piece(Struct, array_like=True):
    """A token of one stream."""

    client: int
    text: str


class _Choice(Struct):
    delta: dict[str, str]
    index: int = 0
    finish_reason: str | None = None


class _Chunk(Struct):
    choices: list[_Choice]
    id: str = "chatcmpl-0123456789abcdef01234567"
    object: str = "chat.completion.chunk"
    created: int = 1_700_000_000
    model: str = "floor"


def run_rounds(load: FloorLoad, placement: Placement, *, rounds: int, progress: Progress) -> list[FloorRound]:
    """Measures `rounds` spans of one run."""
    progress(f"floor: {load.streams} streams x {load.tokens_per_second:g} tok/s through a bare program")
    with kept_awake(placement.system, placement.load), on_core(placement.load):
        return asyncio.run(_measured(load, placement, rounds))


def table_rows(measured: Sequence[FloorRound]) -> list[Row]:
    """Returns the table's lines."""
    return [
        Row("CPU, us per token", [[one.cpu_us_per_token for one in measured]]),
        Row("tokens", [[float(one.tokens) for one in measured]]),
    ]


async def _measured(load: FloorLoad, placement: Placement, rounds: int) -> list[FloorRound]:
    clients = [_Client() for _ in range(load.streams)]
    async with _carrier(clients, placement) as (pid, source):
        pace = asyncio.create_task(_send_steps(load, source))
        try:
            await asyncio.sleep(WARM_UP_SECONDS)
            return [await _one_round(load, clients, pid) for _ in range(rounds)]
        finally:
            pace.cancel()
            await asyncio.gather(pace, return_exceptions=True)


async def _one_round(load: FloorLoad, clients: Sequence["_Client"], pid: int) -> FloorRound:
    frames, used = sum(one.frames for one in clients), cpu_seconds(pid)
    await asyncio.sleep(load.seconds)
    tokens, used = sum(one.frames for one in clients) - frames, cpu_seconds(pid) - used
    if not tokens:
        raise RuntimeError("the bare program carried nothing")
    return FloorRound(tokens, used / tokens * 1e6)


@contextlib.asynccontextmanager
async def _carrier(
    clients: Sequence["_Client"], placement: Placement
) -> AsyncIterator[tuple[int, asyncio.StreamWriter]]:
    """Starts the bare program and connects it; yields its pid, and what its steps are written to."""
    source: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    with tempfile.TemporaryDirectory(prefix="headrace-floor-") as folder:
        path = Path(folder) / "steps.sock"
        async with await asyncio.start_unix_server(lambda _, writer: source.set_result(writer), path):
            command = [sys.executable, "-m", __name__, str(path), str(len(clients))]
            with on_core(placement.system):
                process = await asyncio.create_subprocess_exec(
                    *command, stdout=asyncio.subprocess.PIPE, env=child_environment()
                )
            try:
                async with asyncio.timeout(_DEADLINE_SECONDS):
                    await _connect(clients, process)
                    writer = await source
                yield process.pid, writer
                writer.transport.abort()
            finally:
                process.kill()
                await process.wait()
                await asyncio.gather(*(client.left for client in clients if client.is_connected))


async def _connect(clients: Sequence["_Client"], process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    for client in clients:
        await asyncio.get_running_loop().create_connection(partial(_same, client), HOST, port)


def _same(client: "_Client") -> "_Client":
    return client


async def _send_steps(load: FloorLoad, source: asyncio.StreamWriter) -> None:
    pieces = msgspec.msgpack.encode([_Piece(client, " water") for client in range(load.streams)])
    step, due = len(pieces).to_bytes(_SIZE_BYTES, "big") + pieces, time.monotonic()
    while True:
        source.write(step)
        due += 1 / load.tokens_per_second
        await asyncio.sleep(max(0.0, due - time.monotonic()))


class _Client(asyncio.Protocol):
    """Counts the frames that reach it."""

    def __init__(self) -> None:
        self.frames = 0
        self.is_connected = False
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, _transport: asyncio.BaseTransport) -> None:
        self.is_connected = True

    def connection_lost(self, _exc: Exception | None) -> None:
        self.left.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.frames += data.count(b"\n\n")


class _Steps(asyncio.Protocol):
    """Of the bare program: writes what each step has for whom."""

    def __init__(self, clients: Sequence[asyncio.WriteTransport]) -> None:
        self._clients = clients
        self._buffer = b""
        self._decoder = msgspec.msgpack.Decoder(list[_Piece])
        self._encoder = msgspec.json.Encoder()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _SIZE_BYTES:
            end = _SIZE_BYTES + int.from_bytes(self._buffer[:_SIZE_BYTES], "big")
            if len(self._buffer) < end:
                return
            step, self._buffer = self._buffer[_SIZE_BYTES:end], self._buffer[end:]
            for piece in self._decoder.decode(step):
                frame = self._encoder.encode(_Chunk([_Choice({"content": piece.text})]))
                self._clients[piece.client].write(b"data: %b\n\n" % frame)


class _Accepted(asyncio.Protocol):
    """Of the bare program: a client that came."""

    def __init__(self, clients: list[asyncio.WriteTransport], wanted: int, all_are_here: asyncio.Event) -> None:
        self._clients, self._wanted, self._all_are_here = clients, wanted, all_are_here

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._clients.append(transport)
        if len(self._clients) == self._wanted:
            self._all_are_here.set()


async def _carry(path: str, count: int) -> None:
    loop, all_are_here = asyncio.get_running_loop(), asyncio.Event()
    clients: list[asyncio.WriteTransport] = []
    server = await loop.create_server(lambda: _Accepted(clients, count, all_are_here), HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await all_are_here.wait()
    await loop.create_unix_connection(lambda: _Steps(clients), path)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_carry(sys.argv[1], int(sys.argv[2])))
