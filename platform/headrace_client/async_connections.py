"""WebSockets for the client of asyncio: made, and kept for the next stream."""

import asyncio
import time

from websockets.asyncio.client import ClientConnection, connect
from websockets.protocol import State

from headrace_client.connecting import IDLE_CONNECTIONS, IDLE_SECONDS, Address
from headrace_client.errors import ClientClosedError


class Connection:
    """A WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        return self.socket.state is State.OPEN

    async def close(self) -> None:
        await self.socket.close()


class Connections:
    """Makes connections, and keeps those whose stream has ended for the next stream: it saves a handshake."""

    def __init__(self, address: Address) -> None:
        self.closed = asyncio.Event()
        self._address = address
        self._idle: list[Connection] = []

    async def take(self, *, is_fresh: bool) -> Connection:
        """Return a connection; `is_fresh` for one that was not used before.

        Raises:
            ClientClosedError: the client was closed.
            Exception: one of `BROKEN`.
        """
        if self.closed.is_set():
            raise ClientClosedError("The client is closed.")
        connection = None if is_fresh else await self._take_idle()
        return connection or Connection(await connect(self._address.url, **self._address.options()))

    async def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next stream."""
        connection.idle_since = time.monotonic()
        if len(self._idle) < IDLE_CONNECTIONS and connection.is_open and not self.closed.is_set():
            self._idle.append(connection)
        else:
            await connection.close()

    async def close(self) -> None:
        """Close what is idle; make no more."""
        self.closed.set()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(connection.close() for connection in idle))

    async def _take_idle(self) -> Connection | None:
        oldest = time.monotonic() - IDLE_SECONDS
        idle, self._idle = self._idle, []
        good = [connection for connection in idle if connection.is_open and connection.idle_since > oldest]
        taken = good.pop() if good else None
        self._idle = good
        await asyncio.gather(*(c.close() for c in idle if c is not taken and c not in good))
        return taken
