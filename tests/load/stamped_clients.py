"""The load clients by the kernel's clock: when their host had each text, however late they came to read it.

A client that waits for its turn on a busy machine sees first tokens and gaps that no server caused. Linux notes when
what it gives to a socket came in (SO_TIMESTAMPNS); these clients tell that. Only what came in together before it was
read has one stamp, that of its end: `SeenAnswer.shared_stamps`.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from tests.load.clients import SUBPROTOCOL, SseClient, WebSocketClient

_SO_TIMESTAMPNS = 35
"""Of Linux; Python's socket module does not name it."""
_TIMESPEC = struct.Struct("@qq")
_READ_BYTES = 65_536


class StampedSocket:
    """A connection that is read at once; `take` is given what came, and when, in `time.perf_counter()` seconds."""

    def __init__(self, sock: socket.socket, take: Callable[[bytes, float], None]) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket = sock
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._ahead = time.time() - time.perf_counter()
        self._loop.add_reader(sock, self._read)

    def write(self, data: bytes) -> None:
        """Hands the kernel what it has room for: requests are small."""
        if self._socket.send(data) != len(data):
            raise BufferError("the kernel has no room for a request")

    def close(self) -> None:
        """Reads no more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    async def wait_closed(self) -> None:
        """As a writer of asyncio's; there is nothing to wait for."""

    def _read(self) -> None:
        try:
            data, notes, *_ = self._socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_TIMESPEC.size))
        except ConnectionError:  # it was cut
            data, notes = b"", []
        if data:
            seconds, nanoseconds = _TIMESPEC.unpack(notes[0][2])
            self._take(data, seconds - self._ahead + nanoseconds / 1e9)
        else:
            self._loop.remove_reader(self._socket)
            self._take(b"", time.perf_counter())


class _StampedReader(asyncio.StreamReader):
    """A reader that knows when the last byte of what it has returned came in."""

    def __init__(self) -> None:
        super().__init__()
        self._came = 0
        self._returned = 0
        self._stamps: deque[tuple[int, float]] = deque()
        """Up to which byte of all, and when."""

    def take(self, data: bytes, at: float) -> None:
        """See `StampedSocket`."""
        if data:
            self._came += len(data)
            self._stamps.append((self._came, at))
            self.feed_data(data)
        else:
            self.feed_eof()

    def arrived_at(self) -> float:
        """Returns the stamp of the last byte that was returned."""
        while self._stamps[0][0] < self._returned:
            self._stamps.popleft()
        return self._stamps[0][1]

    async def readuntil(self, separator: bytes = b"\n") -> bytes:  # type: ignore[override]
        """As ever, and counted."""
        data = await super().readuntil(separator)
        self._returned += len(data)
        return data

    async def readexactly(self, n: int) -> bytes:
        """As ever, and counted."""
        data = await super().readexactly(n)
        self._returned += len(data)
        return data


class WebSocketEndedError(Exception):
    """The server has ended a connection."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"the connection has ended (close code {code})")
        self.code = code
        """Of its close frame; None where none came."""


class StampedWebSocket:
    """As much of a WebSocket as load clients need. What comes is taken off the wire at once."""

    def __init__(self, protocol: ClientProtocol) -> None:
        self._protocol = protocol
        self._messages: asyncio.Queue[tuple[bytes, float] | None] = asyncio.Queue()
        """None is the end."""
        self.pongs: asyncio.Queue[float] = asyncio.Queue()
        self.opened = asyncio.Event()
        self.socket: StampedSocket
        self.last_arrived_at = 0.0

    def take(self, data: bytes, at: float) -> None:
        """See `StampedSocket`."""
        if not data:
            self._protocol.receive_eof()
            self._messages.put_nowait(None)
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if not isinstance(event, Frame):
                self.opened.set()
            elif event.opcode is Opcode.TEXT:
                self._messages.put_nowait((bytes(event.data), at))
            elif event.opcode is Opcode.PONG:
                self.pongs.put_nowait(at)
        self.flush()

    def flush(self) -> None:
        """Sends what the protocol has to say."""
        for data in self._protocol.data_to_send():
            if data:
                self.socket.write(data)

    async def send(self, text: str) -> None:
        """Sends a text message."""
        self._protocol.send_text(text.encode())
        self.flush()

    async def recv(self, *, decode: Literal[False]) -> bytes:  # noqa: ARG002  # as `WebSocketClient` calls it
        """Returns the next message's bytes.

        Raises:
            WebSocketEndedError: There is none, and none will be.
        """
        found = await self._messages.get()
        if found is None:
            self._messages.put_nowait(None)  # whoever asks again is told again
            said = self._protocol.close_rcvd
            raise WebSocketEndedError(None if said is None else said.code)
        message, self.last_arrived_at = found
        return message

    def arrived_at(self) -> float:
        """Returns when the message that was returned last came in."""
        return self.last_arrived_at

    async def ping(self) -> float:
        """Returns how long a ping and its pong took, until the kernel had the pong."""
        asked_at = time.perf_counter()
        self._protocol.send_ping(b"here")
        self.flush()
        return await self.pongs.get() - asked_at


@asynccontextmanager
async def stamped_sse_client(host: str, port: int, *, model: str, key: str) -> AsyncIterator[SseClient]:
    """Connects for server-sent events."""
    reader = _StampedReader()
    writer = StampedSocket(socket.create_connection((host, port)), reader.take)
    try:
        yield SseClient(reader, writer, model, key, arrived_at=reader.arrived_at)
    finally:
        writer.close()


@asynccontextmanager
async def stamped_websocket_client(host: str, port: int, *, model: str, key: str) -> AsyncIterator[WebSocketClient]:
    """Connects for `headrace.v1`."""
    async with stamped_websocket(host, port, key) as connection:
        yield WebSocketClient(connection, model, arrived_at=connection.arrived_at)


@asynccontextmanager
async def pinging(host: str, port: int, *, key: str, every_seconds: float) -> AsyncIterator[list[float]]:
    """Yields a list that gets the way to the server and back, again and again: how late it is to read what came."""
    ways: list[float] = []

    async def ping(connection: StampedWebSocket) -> None:
        while True:
            ways.append(await connection.ping())
            await asyncio.sleep(every_seconds)

    async with stamped_websocket(host, port, key) as connection:
        task = asyncio.create_task(ping(connection))
        try:
            yield ways
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def stamped_websocket(host: str, port: int, key: str) -> AsyncIterator[StampedWebSocket]:
    """Connects for `headrace.v1`, without the load client on it."""
    protocol = ClientProtocol(parse_uri(f"ws://{host}:{port}/v1/ws"), subprotocols=[SUBPROTOCOL])  # type: ignore[list-item]  # a NewType of str
    connection = StampedWebSocket(protocol)
    connection.socket = StampedSocket(socket.create_connection((host, port)), connection.take)
    request = protocol.connect()
    request.headers["Authorization"] = f"Bearer {key}"
    protocol.send_request(request)
    connection.flush()
    try:
        await connection.opened.wait()
        yield connection
    finally:
        connection.socket.close()
