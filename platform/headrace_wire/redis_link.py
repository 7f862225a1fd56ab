"""The connections that carry every engine step, appends of a worker and deliveries of a gateway: RESP by hand.

redis-py spends ~0.2 ms of Python on a command whatever is in it, and reconnects by itself where it finds its connection
closed. Both are wrong here: a Redis that restarted may have lost its last second, and nothing may be written or read
past the hole. A link never reconnects; its end is told, and the owner compares logs with memory before it opens
another.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import hiredis
from redis.asyncio.connection import SSLConnection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from headrace_wire.functions import Argument, Reply
from headrace_wire.redis_client import CONNECT_SECONDS

Answered = Callable[[list[Reply] | RedisError], None]
"""Gets the replies of one `send`, in order, or why there are none."""

MOST_TOGETHER = 4
"""Calls that wait for one another at most: as many requests begin in one turn of a gateway's loop."""


class RedisLink(asyncio.Protocol):
    """Sends commands at once, from synchronous code, and hands each answer to a callback."""

    def __init__(self, lost: Callable[[], None]) -> None:
        """`lost` is called once, when the connection has ended by itself."""
        self._lost = lost
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._replies: list[Reply] = []
        self._expected: deque[tuple[int, Answered]] = deque()
        self._together: list[bytes] = []
        """Calls that are expected and not written yet."""

    @classmethod
    async def open(cls, url: str, *, lost: Callable[[], None]) -> Self:
        """Connect and introduce ourselves.

        Raises:
            redis.exceptions.RedisError: the server is unreachable or refuses us.
        """
        options: dict[str, Any] = dict(parse_url(url))
        self = cls(lost)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect(options, use_tls=url.startswith("rediss:"))
                await self._introduce(options)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | TimeoutError):
                raise RedisConnectionError(f"cannot connect: {error}") from error
            raise
        return self

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, commands: Sequence[Sequence[Argument]], answered: Answered) -> None:
        """Send commands; `answered` is called with all their replies."""
        if self._transport is None or self._transport.is_closing():
            answered(RedisConnectionError("not connected"))
            return
        self._expected.append((len(commands), answered))
        packed = b"".join([hiredis.pack_command(tuple(command)) for command in commands])
        if self._together:  # they were first
            self._together.append(packed)
            self._write_together()
        else:
            self._transport.write(packed)

    def send_together(self, commands: Sequence[Sequence[Argument]], answered: Answered) -> None:
        """Send commands at once, as `send`, while nothing is outstanding; else with what else comes in this turn.

        Thirty requests that come at once, each in a message of its own, wake the server, and whoever it answers, thirty
        times. One alone waits for nobody.
        """
        if not self._expected or self._transport is None or self._transport.is_closing():
            self.send(commands, answered)
            return
        self._expected.append((len(commands), answered))
        self._together.append(b"".join([hiredis.pack_command(tuple(command)) for command in commands]))
        if len(self._together) == MOST_TOGETHER:
            self._write_together()
        elif len(self._together) == 1:
            asyncio.get_running_loop().call_soon(self._write_together)

    def _write_together(self) -> None:
        together, self._together = self._together, []
        if together and self._transport is not None:
            self._transport.write(b"".join(together))

    async def ask(self, commands: Sequence[Sequence[Argument]], *, together: bool = False) -> list[Reply]:
        """Send commands, by `send_together` where that is wanted, and return their replies.

        Raises:
            redis.exceptions.RedisError: no answer, or an error among the answers.
        """
        replied: asyncio.Future[list[Reply] | RedisError] = asyncio.get_running_loop().create_future()

        def answered(answer: list[Reply] | RedisError) -> None:
            if not replied.done():
                replied.set_result(answer)

        (self.send_together if together else self.send)(commands, answered)
        replies = await replied
        if isinstance(replies, RedisError):
            raise replies
        for reply in replies:
            if isinstance(reply, Exception):
                raise ResponseError(str(reply)) from reply
        return replies

    def close(self) -> None:
        """Hang up; nobody is told, and what is outstanding stays unanswered."""
        self._lost = _nobody
        self._expected.clear()
        self._together.clear()
        if self._transport is not None:
            self._transport.abort()

    async def _connect(self, options: dict[str, Any], *, use_tls: bool) -> None:
        loop = asyncio.get_running_loop()
        if "path" in options:
            await loop.create_unix_connection(lambda: self, options["path"])
            return
        tls = SSLConnection(**options).ssl_context.get() if use_tls else None
        await loop.create_connection(lambda: self, options.get("host", "localhost"), options.get("port", 6379), ssl=tls)

    async def _introduce(self, options: dict[str, Any]) -> None:
        commands: list[list[Argument]] = []
        if options.get("password"):
            user = [options["username"]] if options.get("username") else []
            commands.append(["AUTH", *user, options["password"]])
        if options.get("db"):
            commands.append(["SELECT", options["db"]])
        commands.append(["PING"])
        await self.ask(commands)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Told by asyncio: connected."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  for the types
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a peer that vanished is noticed

    def data_received(self, data: bytes) -> None:
        """Told by asyncio: bytes came."""
        self._reader.feed(data)
        while True:
            reply = self._reader.gets()
            if reply is False or not self._expected:
                return
            self._replies.append(reply)
            count, answered = self._expected[0]
            if len(self._replies) == count:
                replies, self._replies = self._replies, []
                self._expected.popleft()
                answered(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """Told by asyncio: it has ended."""
        self._transport = None
        outstanding, self._expected = self._expected, deque()
        self._together.clear()
        for _, answered in outstanding:
            answered(RedisConnectionError(f"connection lost: {exc or 'closed by the server'}"))
        self._lost()


def _nobody() -> None:
    pass
