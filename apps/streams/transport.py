"""What an edge uses of the server's view of its connection (`headrace.server.flow_control.TransportControl`)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

EXTENSION = "headrace.transport"
RECEIVED_AT = "headrace.received_at"
"""Key, in a WebSocket's message, of `time.perf_counter()` at which it had come in."""


class Gate(Protocol):
    """Closed, or not."""

    paused: bool


class Transport(Protocol):
    """The part of the server's control that edges use."""

    stall_timeout_seconds: float
    arrived_at: float
    """`time.perf_counter()` when the request had come in, whole; it may have waited since to be read."""

    @property
    def paused(self) -> bool:
        """Whether `send()` would wait now."""

    @property
    def gate(self) -> Gate:
        """What `paused` asks, for whoever asks it with each token."""

    @property
    def send_now(self) -> Callable[[bytes], bool]:
        """Send a part of the body, or a text message, if that is possible without waiting; say whether it was."""

    @property
    def wait_writable(self) -> Callable[[], Awaitable[None]]:
        """Wait while `paused`; raises ConnectionError where the client left."""

    @property
    def client_timed_out(self) -> bool:
        """Whether the connection was cut because its client took, or answered, nothing in time."""

    def buffered_bytes(self) -> int:
        """Return what waits in user space."""

    def abort(self, reason: str) -> None:
        """Cut the connection."""


def transport_of(scope: Mapping[str, Any]) -> Transport | None:
    """Return the control of a connection, or None under a server that has none."""
    control: Transport | None = (scope.get("extensions") or {}).get(EXTENSION)
    return control


def client_timed_out(scope: Mapping[str, Any]) -> bool:
    """Say whether a connection was cut because its client took, or answered, nothing in time."""
    control = transport_of(scope)
    return control is not None and control.client_timed_out


async def send_at_once(control: Transport | None, data: bytes, otherwise: Callable[[], Awaitable[None]]) -> None:
    """Send now, and not at the end of the event loop's turn, so that what is measured next is when it went.

    `otherwise` sends it where that cannot be done.
    """
    if control is None or not control.send_now(data):
        await otherwise()
    elif control.paused:
        await control.wait_writable()


def limit_stall(scope: Mapping[str, Any], seconds: float) -> None:
    """Have the connection cut when its client takes nothing for `seconds`."""
    control = transport_of(scope)
    if control is not None:
        control.stall_timeout_seconds = seconds
