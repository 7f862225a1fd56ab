"""The client for asyncio: `AsyncHeadraceClient` and its `AsyncStream`."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from ssl import SSLContext
from types import TracebackType
from typing import Self, Unpack

from websockets.exceptions import ConnectionClosed

from headrace_client.acknowledgements import QUIET_SECONDS
from headrace_client.async_connections import Connection, Connections
from headrace_client.connecting import (
    BROKEN,
    PONG_SECONDS,
    SILENCE_SECONDS,
    Address,
    loss_of,
    websocket_url,
)
from headrace_client.errors import HeadraceError
from headrace_client.frames import DRAFT_REF, Delta, End, Event, Replacement, encode
from headrace_client.requests import Message, Sampling, SessionMaker
from headrace_client.session import ConnectionUnusableError, Loss, StreamSession
from headrace_client.stream_view import StreamView

log = logging.getLogger("headrace_client")


class AsyncHeadraceClient:
    """Streams of one tenant, in one event loop. Each stream that is being read has a connection of its own."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        ssl: SSLContext | None = None,
        connect_seconds: float = 10.0,
        reconnect_seconds: float = 120.0,
    ) -> None:
        """Connect to nothing yet; see `HeadraceClient`."""
        self._connections = Connections(Address(websocket_url(base_url), api_key, ssl, connect_seconds))
        self._sessions = SessionMaker(connect_seconds, reconnect_seconds)

    def generate(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        window: int | None = None,
        notices: bool = False,
        auto_ack: bool = True,
        **sampling: Unpack[Sampling],
    ) -> "AsyncStream":
        """Return a new stream; it starts when it is entered or read. See `HeadraceClient.generate`."""
        session = self._sessions.generate(model, messages, window, sampling, notices=notices, auto_ack=auto_ack)
        return AsyncStream(self._connections, session)

    def follow(self, stream_id: str, *, after: int = 0, notices: bool = False, auto_ack: bool = True) -> "AsyncStream":
        """Return an existing stream from after position `after` on; any number of clients may follow one."""
        session = self._sessions.follow(stream_id, after, notices=notices, auto_ack=auto_ack)
        return AsyncStream(self._connections, session)

    async def draft(self, model: str, messages: Sequence[Message], text: str) -> None:
        """Let the server compute what is certain of a message that is still being typed. See `HeadraceClient.draft`."""
        frame = encode("draft", model=model, messages=list(messages), text=text, ref=DRAFT_REF)
        with suppress(*BROKEN):
            connection = await self._connections.take(is_fresh=False)
            try:
                await connection.socket.send(frame)
            finally:
                await self._connections.give_back(connection)

    async def cancel(self, stream_id: str) -> End | None:
        """Stop a stream; return how it ended. One that has ended already stays as it is.

        Raises:
            HeadraceError: there is no such stream, or it failed.
        """
        async with self.follow(stream_id) as stream:
            await stream.cancel()
            await stream.read()
            return stream.end

    async def close(self) -> None:
        """Close idle connections; a stream that is being read ends with `ClientClosedError` when it loses its own."""
        await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncStream(StreamView):
    """One stream, read by one task; `cancel` and `acknowledge` may be called by any. See `Stream`."""

    def __init__(self, connections: Connections, session: StreamSession) -> None:
        super().__init__(session)
        self._connections = connections
        self._connection: Connection | None = None
        self._ahead: deque[Event] = deque()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        """Return the next delta.

        Raises:
            HeadraceError: the stream failed or was refused, or cannot be reached.
        """
        while True:
            event = await self._next_event()
            if event is None:
                raise StopAsyncIteration
            if isinstance(event, Delta):
                return event
            if isinstance(event, Replacement):  # text like any other, for who only prints
                return Delta(event.stream_id, self.seq, event.text)

    async def events(self) -> AsyncIterator[Event]:
        """Yield everything that the stream tells: queued, started, deltas, and notices where they were asked for.

        Raises:
            HeadraceError: see `__anext__`.
        """
        while (event := await self._next_event()) is not None:
            yield event

    async def read(self) -> str:
        """Read to the end and return the whole text that came.

        Raises:
            HeadraceError: see `__anext__`.
        """
        async for _ in self:
            pass
        return self.text

    async def cancel(self) -> None:
        """Ask the engine to stop. What comes until then, and the end that confirms it, is still to be read."""
        await self._send(self._session.cancel())

    async def acknowledge(self, seq: int | None = None) -> None:
        """Tell the server that everything up to `seq` was handled, or all that was given (see `auto_ack`)."""
        self._session.acknowledge(self.seq if seq is None else seq)
        await self._send(self._session.ack_frames(is_quiet=True))

    async def close(self) -> None:
        """Stop reading."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def __aenter__(self) -> Self:
        """Start the stream; return once it has an id."""
        try:
            while self.stream_id is None and (event := await self._fetch_event()) is not None:
                self._ahead.append(event)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ---- reading

    async def _next_event(self) -> Event | None:
        self._session.consumed()
        event = self._ahead.popleft() if self._ahead else await self._fetch_event()
        if event is not None:
            self._session.given(event)
        return event

    async def _fetch_event(self) -> Event | None:
        while not self._session.is_over:
            try:
                event = self._session.received(await self._receive(await self._connected()))
            except BROKEN as error:
                await self._come_back(error)
            except HeadraceError:
                await self.close()
                raise
            else:
                if event is not None:
                    return event
        await self._release()
        return None

    async def _connected(self) -> Connection:
        if self._connection is None:
            connection = await self._connections.take(is_fresh=self.stream_id is not None)
            try:
                await connection.socket.send(self._session.opened())
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _receive(self, connection: Connection) -> str | bytes:
        await self._send(self._session.due_frames())
        pong: asyncio.Future[float] | None = None
        while True:
            is_ack_pending = self._session.is_ack_pending
            patience = QUIET_SECONDS if is_ack_pending else SILENCE_SECONDS if pong is None else PONG_SECONDS
            try:
                async with asyncio.timeout(patience):
                    return await connection.socket.recv()
            except TimeoutError:
                if is_ack_pending:
                    await self._send(self._session.ack_frames(is_quiet=True))
                elif pong is None:
                    pong = asyncio.ensure_future(await connection.socket.ping())
                elif pong.done():
                    pong = None
                else:
                    raise ConnectionUnusableError(Loss("the server does not answer")) from None

    async def _send(self, frames: list[str]) -> None:
        """Send, unless there is no connection: the next one says it again where it matters."""
        connection = self._connection
        if connection is not None:
            with suppress(ConnectionClosed):  # the reader finds out
                for frame in frames:
                    await connection.socket.send(frame)

    async def _come_back(self, error: BaseException) -> None:
        """Wait for the moment of the next attempt.

        Raises:
            HeadraceError: there is no point in one.
        """
        await self.close()
        loss = loss_of(error)
        delay = self._session.lost(loss)
        log.info("stream %s: %s; connecting again in %.2f s", self.stream_id, loss.reason, delay)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._connections.closed.wait()

    async def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._session.leaves_clean_connection:
            await self._connections.give_back(connection)
        else:
            await connection.close()
