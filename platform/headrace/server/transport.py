"""The TCP side of a connection: one write per loop tick, exact accounting, a stall deadline on every write."""

# ruff: noqa: ANN401, N802  Twisted ships no types; the camel-case names are its own.

import array
import asyncio
import fcntl
import logging
import socket
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

from twisted.internet import main, tcp

from headrace.server.arrival import NOTES_BYTES, arrived_at
from headrace.server.flow_control import STALLED, ClientGoneError

if TYPE_CHECKING:
    from headrace.server.listener import Listener

logger = logging.getLogger(__name__)

ASKED_AGAIN = 1 / 16
"""Share of the stall timeout for which a client that has taken something is not looked at again: with the time between
two sweeps it stays within the eighth that a deadline may be late."""

_in_kernel = array.array("i", [0])
"""For the kernel's answers, one at a time."""
# The socket module names it from Python 3.12 on; the number is Linux's.
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else None)


class WriteFlusher:
    """Sends, once per tick of the loop, what all connections were given in it.

    Twisted asks epoll first whether it may write; that costs two system calls per message and gains nothing while the
    kernel has room. Here the poll is asked only after the kernel refused something.
    """

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[GatewayTransport] = []

    def add(self, transport: "GatewayTransport") -> None:
        """Puts the transport on this tick's list."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(transport)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            transport.flush_now()


class GatewayTransport(tcp.Server):  # type: ignore[misc]  # Twisted ships no types
    """One accepted connection."""

    def __init__(self, sock: socket.socket, protocol: Any, client: Any, server: "Listener", *rest: Any) -> None:
        self.accepted_bytes = 0
        self.close_reason: str | None = None
        self.arrived_at = time.perf_counter()
        """`time.perf_counter()` at which the last of what was read had come in."""
        self.stall_timeout_seconds = server.config.stall_timeout_seconds
        # Twisted's one number for two things: how much to read at once, and where the producer is paused.
        self.bufferSize = server.config.write_mark_bytes
        self._state = server.state
        self._config = server.config
        self._flusher = server.flusher
        self._flush_queued = False
        self._polled = False
        self._stream_tuned = False
        self._progress_bytes = 0
        self._progress_at = time.monotonic()
        self._accept_waiters: list[tuple[int, asyncio.Future[None]]] = []
        super().__init__(sock, protocol, client, server, *rest)
        self._state.connections.add(self)
        self._state.accepted_total += 1

    # ---- reading

    def doRead(self) -> Any:
        """Twisted's, with the kernel's note of when it came."""
        try:
            data, notes, _flags, _address = self.socket.recvmsg(self.bufferSize, NOTES_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return main.CONNECTION_LOST
        self.arrived_at = arrived_at(notes)
        return self._dataReceived(data)

    # ---- accounting

    def buffered_bytes(self) -> int:
        """Returns what waits in user space."""
        return int(len(self.dataBuffer) - self.offset + self._tempDataLen)

    def kernel_bytes(self) -> int:
        """Returns what the kernel holds unsent or unacknowledged (Linux; 0 elsewhere or when closed)."""
        if not self.connected or sys.platform != "linux":
            return 0
        fcntl.ioctl(self.fileno(), termios.TIOCOUTQ, _in_kernel)
        return _in_kernel[0]

    async def wait_accepted(self, position: int) -> None:
        """See `TransportControl.wait_accepted`."""
        if self.accepted_bytes >= position:
            return
        if not self.connected:
            raise ClientGoneError
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (position, future)
        self._accept_waiters.append(waiter)
        try:
            await future
        finally:
            self._accept_waiters.remove(waiter)
        if self.accepted_bytes < position:
            raise ClientGoneError

    def writeSomeData(self, data: bytes) -> Any:
        """Counts what the kernel takes."""
        sent = super().writeSomeData(data)
        if type(sent) is int:
            self.accepted_bytes += sent
            if self._accept_waiters:
                self._wake_accept_waiters()
        return sent

    def _wake_accept_waiters(self) -> None:
        for position, future in self._accept_waiters:
            if not future.done() and (position <= self.accepted_bytes or not self.connected):
                future.set_result(None)

    # ---- writing

    def startWriting(self) -> None:
        """Called by Twisted after each write and when a close was asked for."""
        if not self._flush_queued and not self._polled:
            self._flush_queued = True
            self._flusher.add(self)

    def write_now(self, data: bytes) -> None:
        """Hands the kernel what it takes of `data` at once; what it does not take is written as ever.

        `write` and the flush that follows are ten calls of Python for one `send`, more than everything else that a
        token costs here. What was written in this tick already goes with it.
        """
        sent, is_behind = 0, self._flush_queued
        if (
            self.connected
            and self.close_reason is None
            and not (self._flush_queued or self._polled or self._tempDataLen or self.dataBuffer)
            and not (self.disconnecting or self._writeDisconnecting)  # what is written now can still be sent
        ):
            try:
                sent = self.socket.send(data)
            except OSError:
                sent = 0  # no room, or the connection is broken: the flush sees which
            self.accepted_bytes += sent
            if self._accept_waiters:
                self._wake_accept_waiters()
        if sent < len(data):
            self.write(data[sent:])
            if is_behind:
                self.flush_now()

    def stopWriting(self) -> None:
        """Called by Twisted when all is written, and on the way to the end of the connection."""
        if self._polled:
            self._polled = False
            super().stopWriting()

    def flush_now(self) -> None:
        """Hands the kernel what was written in this tick, as much as it takes, unless that was done already.

        The poll is asked for the rest, and for the end of a broken connection.
        """
        if not self._flush_queued:
            return
        self._flush_queued = False
        if not self.connected or self.close_reason is not None:
            return
        try:
            failed = self.doWrite()
        except Exception:
            # One connection's failure must not keep this tick's other connections from their bytes.
            logger.exception("A connection could not be flushed and is cut.")
            self.abort("internal error")
            return
        if failed is not None or self.buffered_bytes():
            self._polled = True
            super().startWriting()

    def tune_for_stream(self) -> None:
        """Makes the kernel's share small, so that a client that does not read is felt after a few KiB, not after 4 MiB.

        Only for streams: it would slow a large download over a long line down.
        """
        if self._stream_tuned or not self.connected:
            return
        self._stream_tuned = True
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.socket_send_buffer_bytes)
        if _TCP_NOTSENT_LOWAT is not None:
            self.socket.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, self._config.notsent_low_water_bytes)

    # ---- the end

    def check_progress(self, now: float) -> int:
        """Cuts the connection when its client took nothing of what waits for it during the stall timeout.

        Returns what waits in user space: whoever wants the sum need not go through a thousand cold connections again.

        What the kernel holds unacknowledged counts as waiting: the heartbeats to a host that vanished fit into its
        send queue for hours, and TCP itself gives up after a quarter of an hour. The kernel is asked as seldom as may
        be: of a thousand slow streams, this is what they cost beside their tokens.
        """
        if self.accepted_bytes == self._progress_bytes and not (self._tempDataLen or self.dataBuffer):
            self._progress_at = now  # all had been acknowledged, and nothing came since
            return 0
        buffered = self.buffered_bytes() if self._tempDataLen or self.dataBuffer else 0
        if now - self._progress_at < self.stall_timeout_seconds * ASKED_AGAIN:
            return buffered
        in_kernel = self.kernel_bytes()
        acknowledged = self.accepted_bytes - in_kernel
        if acknowledged != self._progress_bytes or not (in_kernel or buffered):
            self._progress_bytes = acknowledged
            self._progress_at = now
        elif now - self._progress_at > self.stall_timeout_seconds:
            self._state.stalled_total += 1
            self.abort(STALLED)
        return buffered

    def abort(self, reason: str) -> None:
        """Cuts the connection; what is buffered is lost."""
        if self.close_reason is None and self.connected:
            self.close_reason = reason
            self.abortConnection()

    def released(self) -> None:
        """The application no longer holds this WebSocket open against a drain."""
        if self.connected and self._state.draining.is_set():
            self.protocol.drain()

    def connectionLost(self, reason: Any) -> None:
        """Twisted's last call, and sometimes its last but one."""
        self._state.connections.discard(self)
        self._state.changed.set()
        super().connectionLost(reason)
        self._wake_accept_waiters()
