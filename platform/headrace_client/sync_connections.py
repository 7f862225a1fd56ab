"""WebSockets for the client of threads: made, and kept for the next stream."""

import threading
import time
from contextlib import ExitStack

from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from headrace_client.connecting import IDLE_CONNECTIONS, IDLE_SECONDS, Address
from headrace_client.errors import ClientClosedError


class Connection:
    """A WebSocket. Of the versions of the websockets library, all agree on its use as a context manager only."""

    def __init__(self, address: Address) -> None:
        self._closing = ExitStack()
        self.socket: ClientConnection = self._closing.enter_context(connect(address.url, **address.options()))
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        return self.socket.protocol.state is State.OPEN

    def close(self) -> None:
        self._closing.close()


class Connections:
    """Makes connections, and keeps those whose stream has ended for the next stream: it saves a handshake."""

    def __init__(self, address: Address) -> None:
        self.closed = threading.Event()
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    def take(self, *, is_fresh: bool) -> Connection:
        """Return a connection; `is_fresh` for one that was not used before.

        Raises:
            ClientClosedError: the client was closed.
            Exception: one of `BROKEN`.
        """
        if self.closed.is_set():
            raise ClientClosedError("The client is closed.")
        connection = None if is_fresh else self._take_idle()
        return connection or Connection(self._address)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next stream."""
        connection.idle_since = time.monotonic()
        with self._lock:
            is_kept = len(self._idle) < IDLE_CONNECTIONS and connection.is_open and not self.closed.is_set()
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()

    def close(self) -> None:
        """Close what is idle; make no more."""
        self.closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take_idle(self) -> Connection | None:
        oldest = time.monotonic() - IDLE_SECONDS
        with self._lock:
            idle, self._idle = self._idle, []
            good = [connection for connection in idle if connection.is_open and connection.idle_since > oldest]
            taken = good.pop() if good else None
            self._idle = good
        for connection in idle:
            if connection is not taken and connection not in good:
                connection.close()
        return taken
