"""The client for threads: `HeadraceClient` and its `Stream`."""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ssl import SSLContext
from types import TracebackType
from typing import Self, Unpack

from websockets.exceptions import ConnectionClosed

from headrace_client.acknowledgements import QUIET_SECONDS
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
from headrace_client.sync_connections import Connection, Connections

log = logging.getLogger("headrace_client")


class HeadraceClient:
    """Streams of one tenant, for any number of threads. Each stream that is being read has a connection of its own."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        ssl: SSLContext | None = None,
        connect_seconds: float = 10.0,
        reconnect_seconds: float = 120.0,
    ) -> None:
        """Connect to nothing yet.

        Args:
            base_url: `https://host`, or the full address of the WebSocket.
            api_key: `sk-hr-…`.
            ssl: In place of the default context.
            connect_seconds: How long to try to reach a server that has not answered about the stream yet.
            reconnect_seconds: How long to try to come back to a stream before `ConnectionLostError`.

        Raises:
            ValueError: `base_url` is no address.
        """
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
    ) -> "Stream":
        """Return a new stream; it starts when it is entered or read.

        Args:
            model: Name of a deployment.
            messages: The conversation.
            window: Tokens that may be generated ahead of what was acknowledged; at most the tenant's.
            notices: Whether `events` tells that the engine waits for acknowledgements.
            auto_ack: Whether what was consumed is acknowledged; else `Stream.acknowledge` does it.
            **sampling: Fields as in chat completions.
        """
        session = self._sessions.generate(model, messages, window, sampling, notices=notices, auto_ack=auto_ack)
        return Stream(self._connections, session)

    def follow(self, stream_id: str, *, after: int = 0, notices: bool = False, auto_ack: bool = True) -> "Stream":
        """Return an existing stream from after position `after` on; any number of clients may follow one."""
        session = self._sessions.follow(stream_id, after, notices=notices, auto_ack=auto_ack)
        return Stream(self._connections, session)

    def draft(self, model: str, messages: Sequence[Message], text: str) -> None:
        """Let the server compute what is certain of a message that is still being typed, where it has time for it.

        Send the newest text when the typing pauses; an edit anywhere is fine, an empty text takes the last one back.
        Nothing is generated, logged or billed for it, and what does not arrive is no loss. A server of an earlier
        version takes it for a bad frame; send it none.

        Args:
            model: Name of a deployment.
            messages: The conversation before it.
            text: What it says so far.
        """
        frame = encode("draft", model=model, messages=list(messages), text=text, ref=DRAFT_REF)
        with suppress(*BROKEN):
            connection = self._connections.take(is_fresh=False)
            try:
                connection.socket.send(frame)
            finally:
                self._connections.give_back(connection)

    def cancel(self, stream_id: str) -> End | None:
        """Stop a stream; return how it ended. One that has ended already stays as it is.

        Raises:
            HeadraceError: there is no such stream, or it failed.
        """
        with self.follow(stream_id) as stream:
            stream.cancel()
            stream.read()
            return stream.end

    def close(self) -> None:
        """Close idle connections; a stream that is being read ends with `ClientClosedError` when it loses its own."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Stream(StreamView):
    """One stream, read by one thread; `cancel` and `acknowledge` may be called by any.

    Iterating gives its deltas. Leaving its `with` block before its end leaves the stream to the tenant's policy for
    streams that nobody reads; `cancel` stops it.
    """

    def __init__(self, connections: Connections, session: StreamSession) -> None:
        super().__init__(session)
        self._connections = connections
        self._connection: Connection | None = None
        self._ahead: deque[Event] = deque()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        """Return the next delta.

        Raises:
            HeadraceError: the stream failed or was refused, or cannot be reached.
        """
        while True:
            event = self._next_event()
            if event is None:
                raise StopIteration
            if isinstance(event, Delta):
                return event
            if isinstance(event, Replacement):  # text like any other, for who only prints
                return Delta(event.stream_id, self.seq, event.text)

    def events(self) -> Iterator[Event]:
        """Yield everything that the stream tells: queued, started, deltas, and notices where they were asked for.

        Raises:
            HeadraceError: see `__next__`.
        """
        while (event := self._next_event()) is not None:
            yield event

    def read(self) -> str:
        """Read to the end and return the whole text that came.

        Raises:
            HeadraceError: see `__next__`.
        """
        for _ in self:
            pass
        return self.text

    def cancel(self) -> None:
        """Ask the engine to stop. What comes until then, and the end that confirms it, is still to be read."""
        self._send(self._session.cancel())

    def acknowledge(self, seq: int | None = None) -> None:
        """Tell the server that everything up to `seq` was handled, or all that was given (see `auto_ack`)."""
        self._session.acknowledge(self.seq if seq is None else seq)
        self._send(self._session.ack_frames(is_quiet=True))

    def close(self) -> None:
        """Stop reading."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        """Start the stream; return once it has an id."""
        try:
            while self.stream_id is None and (event := self._fetch_event()) is not None:
                self._ahead.append(event)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- reading

    def _next_event(self) -> Event | None:
        self._session.consumed()
        event = self._ahead.popleft() if self._ahead else self._fetch_event()
        if event is not None:
            self._session.given(event)
        return event

    def _fetch_event(self) -> Event | None:
        while not self._session.is_over:
            try:
                event = self._session.received(self._receive(self._connected()))
            except BROKEN as error:
                self._come_back(error)
            except HeadraceError:
                self.close()
                raise
            else:
                if event is not None:
                    return event
        self._release()
        return None

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._connections.take(is_fresh=self.stream_id is not None)
            try:
                connection.socket.send(self._session.opened())
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _receive(self, connection: Connection) -> str | bytes:
        self._send(self._session.due_frames())
        pong: threading.Event | None = None
        while True:
            is_ack_pending = self._session.is_ack_pending
            patience = QUIET_SECONDS if is_ack_pending else SILENCE_SECONDS if pong is None else PONG_SECONDS
            try:
                return connection.socket.recv(timeout=patience)
            except TimeoutError:
                if is_ack_pending:
                    self._send(self._session.ack_frames(is_quiet=True))
                elif pong is None:
                    pong = connection.socket.ping()
                elif pong.is_set():
                    pong = None
                else:
                    raise ConnectionUnusableError(Loss("the server does not answer")) from None

    def _send(self, frames: list[str]) -> None:
        """Send, unless there is no connection: the next one says it again where it matters."""
        connection = self._connection
        if connection is not None:
            with suppress(ConnectionClosed):  # the reader finds out
                for frame in frames:
                    connection.socket.send(frame)

    def _come_back(self, error: BaseException) -> None:
        """Wait for the moment of the next attempt.

        Raises:
            HeadraceError: there is no point in one.
        """
        self.close()
        loss = loss_of(error)
        delay = self._session.lost(loss)
        log.info("stream %s: %s; connecting again in %.2f s", self.stream_id, loss.reason, delay)
        self._connections.closed.wait(delay)

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._session.leaves_clean_connection:
            self._connections.give_back(connection)
        else:
            connection.close()
