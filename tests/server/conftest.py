"""A real server process, raw clients that read or do not, and a check that no test put a traceback into the log."""

import asyncio
import itertools
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests.conftest import Spawn
from tests.support.processes import Process

APPLICATION = "tests.server.applications:application"
SMALL_RECEIVE_BUFFER = 4096
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
TRANSPORTS = {"http": (), "websocket": UPGRADE}
"""The headers that make a GET one or the other."""


@dataclass(frozen=True)
class Client:
    """A raw connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def get(self, path: str, *headers: str) -> None:
        """Sends a GET without waiting for its answer."""
        await self.send("\r\n".join([f"GET {path} HTTP/1.1", "Host: test", *headers, "", ""]).encode())

    async def head(self) -> tuple[int, dict[str, str]]:
        """Reads status and headers of an answer."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def body(self, headers: dict[str, str]) -> bytes:
        """Reads a whole body, by length or in chunks."""
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        parts = []
        while length := int(await self.reader.readuntil(b"\r\n"), 16):
            parts.append((await self.reader.readexactly(length + 2))[:-2])
        await self.reader.readexactly(2)
        return b"".join(parts)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        return status, headers, await self.body(headers)

    async def read_to(self, end: bytes) -> bytes:
        """Reads, whatever the amount, until what was read ends so."""
        received = bytearray()
        while not received.endswith(end):
            part = await self.reader.read(65536)
            assert part, "The connection ended too early."
            received += part
        return bytes(received)

    async def read_away(self) -> None:
        """Reads and forgets, until cancelled."""
        while await self.reader.read(65536):
            pass

    async def rest(self) -> bytes:
        """Reads up to the end of the connection, orderly or not."""
        parts = []
        try:
            while part := await self.reader.read(65536):
                parts.append(part)
        except ConnectionError:
            pass
        return b"".join(parts)


@dataclass(frozen=True)
class Gateway:
    """A running `python -m headrace.server`."""

    process: Process
    port: int

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def rss_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @asynccontextmanager
    async def connect(self, *, receive_buffer: int | None = None) -> AsyncIterator[Client]:
        """Connects; with a small receive buffer a client that does not read is felt at once."""
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        # A small limit: asyncio's own buffer must not read on behalf of a test that does not.
        reader, writer = await asyncio.open_connection(sock=sock, limit=receive_buffer or 2**16)
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()

    async def get(self, path: str) -> Any:
        """The JSON of a GET on a connection of its own."""
        async with asyncio.timeout(60), self.connect() as client:
            await client.get(path, "Connection: close")
            _, _, body = await client.answer()
            return json.loads(body)

    async def journal(self, name: str, event: str | None = None) -> Any:
        """The notes of the call `name`, once it has noted `event`."""
        return await self.get(f"/journal?of={name}" + (f"&event={quote(event)}" if event else ""))

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Asks for the server's counts until they are as wanted."""
        async with asyncio.timeout(60):
            while True:
                counts: dict[str, Any] = await self.get("/counts")
                if wanted(counts):
                    return counts


Serve = Callable[..., Awaitable[Gateway]]

_names = itertools.count()


@pytest.fixture
def name() -> str:
    """Under this name a test's call notes what happens to it."""
    return f"call{next(_names)}"


@pytest.fixture
async def serve(spawn: Spawn) -> AsyncIterator[Serve]:
    """Starts servers. Its keyword arguments are the options of `ServerConfig`."""
    started: list[Process] = []

    async def start(application: str = APPLICATION, **options: float) -> Gateway:
        process = await asyncio.to_thread(spawn, _command(application, **options), name="server")
        started.append(process)
        return await asyncio.to_thread(_listening, process)

    yield start
    for process in started:
        await asyncio.to_thread(process.stop)
        assert "Traceback" not in process.log, process.log


@pytest.fixture(scope="module")
def shared_gateway() -> Iterator[Gateway]:
    with Process(_command(APPLICATION), name="server") as process:
        yield _listening(process)
        process.stop(timeout=60)
    assert process.returncode == 0, process.log


@pytest.fixture
def gateway(shared_gateway: Gateway, request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """A server with the default options; the tests of a module share it."""
    before = len(shared_gateway.process.log)
    yield shared_gateway
    log = shared_gateway.process.log[before:]
    request.node.add_report_section("teardown", "log of the server", log)
    assert "Traceback" not in log, log


def _command(application: str, **options: float) -> list[str]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "headrace.server", "--port=0", f"--application={application}", *flags]


def _listening(process: Process) -> Gateway:
    return Gateway(process, int(process.wait_for_line(r"Listening on \S+ port (\d+)")[1]))
