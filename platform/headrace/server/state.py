"""What the application may know about the server that runs it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

STATE_KEY = "headrace.server"
"""Key of the `ServerState` in `scope["state"]`, in every scope (http, websocket, lifespan)."""


class OpenConnection(Protocol):
    """What the state's readers use of a transport."""

    protocol: Any

    def buffered_bytes(self) -> int:
        """Returns what waits in user space."""

    def check_progress(self, now: float) -> int:
        """Cuts the connection when its client took nothing for too long; returns what waits in user space."""

    def abort(self, reason: str) -> None:
        """Cuts the connection."""


@dataclass(slots=True, eq=False)
class ServerState:
    """Live numbers and drain events of one server; read by the application, written by the server."""

    leave: Callable[[], None] = lambda: None
    """Have the server end as SIGTERM does; called again, nothing more."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server must not be given new work: readiness answers no, new streams are refused."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set shortly before the drain deadline: what still runs ends itself now, with an explicit error."""
    drain_deadline: float | None = None
    """Point on the monotonic clock (`time.monotonic`) at which running streams are cut; None while not draining."""

    connections: set[OpenConnection] = field(default_factory=set, repr=False)
    """Open transports, for the server's own use; the application takes `connection_count` and `buffered_bytes`."""
    changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set whenever a connection or an application call has ended; for the drain."""
    http_requests: int = 0
    """Requests in the application now, streams included."""
    websockets: int = 0
    """WebSockets in the application now, those in their handshake included."""

    accepted_total: int = 0
    refused_total: int = 0
    """Requests and connections that the server answered itself: over a limit or past a deadline."""
    stalled_total: int = 0
    """Connections closed because their client took nothing for the stall timeout."""
    ping_timeout_total: int = 0
    buffered_lately: int = 0
    """As `buffered_bytes`, at the last sweep over all connections, which costs no look of its own."""

    @property
    def connection_count(self) -> int:
        """Open TCP connections, idle ones included."""
        return len(self.connections)

    def buffered_bytes(self) -> int:
        """Returns what waits in user space over all connections, because clients are slower than their streams."""
        return sum([connection.buffered_bytes() for connection in self.connections])


def server_state(scope: Mapping[str, Any]) -> ServerState | None:
    """Returns the state of the server behind `scope`; None where another server (a test client) made the scope."""
    state = (scope.get("state") or {}).get(STATE_KEY)
    return state if isinstance(state, ServerState) else None
