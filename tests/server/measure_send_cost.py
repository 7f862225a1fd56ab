"""CPU of a server for each streamed message: ours, stock Daphne, uvicorn.

Run `python -m tests.server.measure_send_cost [SERVER ...]` with `platform/` and the root on the path. Every stream
sends one message (or eight) in each tick of the loop, as pumps do that were woken by one engine step. The cost of
connecting is measured apart and taken off. The figure is CPU time of the server's process, read while a client on
another core reads all; repeat runs differ by a tenth, more on a busy machine.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import psutil

from tests.server.conftest import UPGRADE
from tests.support.processes import Process, free_port

STREAMS, MESSAGES = 500, 400
MESSAGE = (
    '{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk",'
    '"choices":[{"index":0,"delta":{"content":" token"}}]}'
)
EVENT = f"data: {MESSAGE}\n\n".encode()

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """`?count=N&per_tick=K`: N messages of about 130 bytes, K in a tick of the loop."""
    if scope["type"] == "lifespan":
        raise ValueError("No lifespan here.")
    query = parse_qs(scope["query_string"].decode())
    count, per_tick = int(query["count"][0]), int(query["per_tick"][0])
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        message: dict[str, Any] = {"type": "websocket.send", "text": MESSAGE}
        end: dict[str, Any] = {"type": "websocket.close", "code": 1000}
    else:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        message = {"type": "http.response.body", "body": EVENT, "more_body": True}
        end = {"type": "http.response.body", "body": b""}
    for number in range(count):
        await send(dict(message))
        if number % per_tick == per_tick - 1:
            await asyncio.sleep(0)
    await send(end)


SERVERS = {
    "headrace.server": ["-m", "headrace.server", "--application={app}", "--port={port}"],
    "daphne": ["-m", "daphne", "-v0", "-e", "tcp:{port}:interface=127.0.0.1:backlog=1024", "{app}"],
    "uvicorn (asyncio)": ["-m", "uvicorn", "--loop=asyncio", "--log-level=error", "--port={port}", "{app}"],
    "uvicorn (uvloop)": ["-m", "uvicorn", "--loop=uvloop", "--log-level=error", "--port={port}", "{app}"],
}


def main() -> None:
    """Prints one line for each server and kind of stream."""
    chosen = sys.argv[1:] or list(SERVERS)
    os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
    print(f"{STREAMS} streams x {MESSAGES} messages of {len(EVENT)} bytes; CPU of the server in us per message")
    print(f"{'':20}{'SSE':>8}{'SSE x8':>8}{'WS':>8}{'WS x8':>8}   RSS KiB per stream (SSE, WS)")
    for name in chosen:
        port = free_port()
        values = {"app": "tests.server.measure_send_cost:application", "port": port}
        command = [sys.executable, *(part.format(**values) for part in SERVERS[name])]
        with Process(command, name=name) as server:
            os.sched_setaffinity(server.pid, {0})
            server.wait_for_address(("127.0.0.1", port))
            asyncio.run(_measure_server(name, server.pid, port))


async def _measure_server(name: str, pid: int, port: int) -> None:
    process = psutil.Process(pid)
    await _streams(port, 0, 1, ())
    await _streams(port, 0, 1, UPGRADE)
    figures, sizes = [], []
    for headers in ((), UPGRADE):
        base = process.memory_info().rss
        set_up = await _cpu(process, port, 0, 1, headers)
        for per_tick in (1, 8):
            spent = await _cpu(process, port, MESSAGES, per_tick, headers)
            figures.append((spent - set_up) / (STREAMS * MESSAGES) * 1e6)
        sizes.append((process.memory_info().rss - base) / STREAMS / 1024)
    print(f"{name:20}" + "".join(f"{figure:8.1f}" for figure in figures) + "".join(f"{size:8.1f}" for size in sizes))


async def _cpu(process: psutil.Process, port: int, count: int, per_tick: int, headers: tuple[str, ...]) -> float:
    before = process.cpu_times()
    await _streams(port, count, per_tick, headers)
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system)


async def _streams(port: int, count: int, per_tick: int, headers: tuple[str, ...]) -> None:
    head = [f"GET /?count={count}&per_tick={per_tick} HTTP/1.1", "Host: bench", *headers]
    if not headers:
        head.append("Connection: close")
    request = "\r\n".join([*head, "", ""]).encode()
    loop = asyncio.get_running_loop()
    ends: list[asyncio.Future[None]] = [loop.create_future() for _ in range(STREAMS)]
    for end in ends:
        await loop.create_connection(partial(_Reader, request, end), "127.0.0.1", port)
    await asyncio.gather(*ends)


class _Reader(asyncio.BufferedProtocol):
    """Reads and forgets; ends with the stream's close frame or its connection."""

    _buffer = bytearray(65536)

    def __init__(self, request: bytes, end: "asyncio.Future[None]") -> None:
        self._request, self._end = request, end
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport
        transport.write(self._request)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002  # asyncio's signature
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._buffer[:nbytes].endswith(b"\x88\x02\x03\xe8") and self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        if not self._end.done():
            self._end.set_result(None)


if __name__ == "__main__":
    main()
