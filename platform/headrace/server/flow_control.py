"""Flow control between an application's `send()` and its client.

Twisted tells a producer to pause and to resume; `WriteGate` turns that into something `send()` can await.
`TransportControl` is what the application sees of its connection.
"""

# ruff: noqa: N802  The camel-case names are those of Twisted's IPushProducer.

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

if TYPE_CHECKING:
    from headrace.server.exchange import Exchange

EXTENSION = "headrace.transport"
"""Key of the `TransportControl` in `scope["extensions"]`."""
STALLED, PING_TIMEOUT = "stalled", "ping timeout"
CLIENT_TIMEOUTS = frozenset({STALLED, PING_TIMEOUT})
"""Reasons to cut a connection that are its client's, or the network's on the way to it."""
RECEIVED_AT = "headrace.received_at"
"""Key of `time.perf_counter()` at which a WebSocket's message had come in, in the message."""


class ClientGoneError(ConnectionError):
    """The client left, or was cut off; what was sent may not have arrived. ASGI 2.4 asks for an `OSError` here."""


def _refuse(_: bytes) -> bool:
    return False


@implementer(IPushProducer)
class WriteGate:
    """Closed while the connection's user-space buffer is over its mark; `wait()` returns when it opens.

    A sender writes first and waits then, so the buffer holds at most the mark and one message for each sender. Each
    waiter has its own future: one sender that is cancelled leaves the others waiting.
    """

    __slots__ = ("_waiters", "ended", "paused")

    def __init__(self) -> None:
        self.paused = False
        self.ended = False
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Waits until the buffer has drained or the connection is lost (then `ended` is set)."""
        if not self.paused or self.ended:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def pauseProducing(self) -> None:
        """The buffer went over its mark (called at every write while it is)."""
        self.paused = True

    def resumeProducing(self) -> None:
        """The buffer is empty."""
        self.paused = False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def stopProducing(self) -> None:
        """The connection is lost."""
        self.ended = True
        self.resumeProducing()


class TransportControl:
    """The application's view of its connection: `scope["extensions"]["headrace.transport"]`.

    Byte positions count what was written to the connection since it opened, framing included, so on a kept-alive HTTP
    connection only differences mean something. A chunk is with the kernel when `accepted_bytes` has reached the
    `written_bytes` that were read right after its `send()`.
    """

    __slots__ = ("_gate", "_holds", "_transport", "arrived_at", "send_now", "wait_writable")

    def __init__(self, exchange: "Exchange") -> None:
        self._transport = exchange.transport
        self.arrived_at = exchange.arrived_at
        """`time.perf_counter()` when the request, or the handshake, had come in, whole."""
        self._gate = exchange.gate
        self._holds = 0
        self.send_now: Callable[[bytes], bool] = exchange.send_now
        """See `Exchange.send_now`."""
        self.wait_writable: Callable[[], Awaitable[None]] = exchange.wait_writable
        """See `Exchange.wait_writable`."""

    @property
    def paused(self) -> bool:
        """Whether `send()` would wait now."""
        return self._gate.paused

    @property
    def gate(self) -> WriteGate:
        """What is `paused` while `send()` would wait, for whoever asks that with each token."""
        return self._gate

    def release(self) -> None:
        """The application call is over; nothing can be sent any more."""
        self.send_now = _refuse
        self.wait_writable = self._gate.wait

    @property
    def accepted_bytes(self) -> int:
        """Bytes that the kernel took."""
        return self._transport.accepted_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes written so far: those the kernel took and those that still wait in user space."""
        return self._transport.accepted_bytes + self._transport.buffered_bytes()

    def buffered_bytes(self) -> int:
        """Returns what waits in user space because the client does not read."""
        return self._transport.buffered_bytes()

    def unacknowledged_bytes(self) -> int:
        """Returns what the client's TCP has not acknowledged: user space and the kernel's send queue (Linux)."""
        return self._transport.buffered_bytes() + self._transport.kernel_bytes()

    async def wait_accepted(self, position: int) -> None:
        """Waits until `accepted_bytes >= position`: a pump that waits for credit learns here that its client reads on.

        Raises:
            ClientGoneError: The connection was lost first.
        """
        await self._transport.wait_accepted(position)

    def abort(self, reason: str) -> None:
        """Cuts the connection at once; what is buffered is lost. `reason` is for logs and `close_reason`."""
        self._transport.abort(reason)

    @property
    def close_reason(self) -> str | None:
        """Why the server cut the connection (`stalled`, `ping timeout`, `drain`, ...); None if it did not."""
        return self._transport.close_reason

    @property
    def client_timed_out(self) -> bool:
        """Whether the server cut the connection because its client took, or answered, nothing in time."""
        return self._transport.close_reason in CLIENT_TIMEOUTS

    @property
    def stall_timeout_seconds(self) -> float:
        """How long the client may take nothing of what waits for it before the connection is cut; settable."""
        return self._transport.stall_timeout_seconds

    @stall_timeout_seconds.setter
    def stall_timeout_seconds(self, seconds: float) -> None:
        self._transport.stall_timeout_seconds = seconds

    @property
    def held(self) -> bool:
        """Whether the application asked a drain to wait for this WebSocket."""
        return self._holds > 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """While held, a drain leaves this WebSocket open up to its deadline. Without it, it gets 1012 at once.

        HTTP requests need no hold: a drain waits for each one that runs.
        """
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._transport.released()
