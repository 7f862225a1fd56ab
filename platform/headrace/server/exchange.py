"""One call of the application: what it receives, what it sends, and how its end and the client's end meet."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.server.flow_control import ClientGoneError, TransportControl, WriteGate

if TYPE_CHECKING:
    from headrace.server.transport import GatewayTransport

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Application = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

GONE_GRACE_SECONDS = 1.0
"""How long `send()` holds its `ClientGoneError` back when the application waits in `receive()`: it has been told there
and will cancel the sender. Django closes a streamed response only on that way; after an exception from `send()` it
leaves the body to the garbage collector."""


class Inbox:
    """The `receive()` side. Stops reading from the client while the application leaves `limit` messages unread."""

    def __init__(self, transport: "GatewayTransport", limit: int) -> None:
        self._transport = transport
        self._limit = limit
        self._messages: deque[Message] = deque()
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._disconnect: Message | None = None
        self.reading_paused = False
        self.told_disconnect = False
        """Whether the application was waiting in `receive()` when the client's end was put in."""

    def put_nowait(self, message: Message) -> None:
        """Adds a message; never refuses one, the limit acts on the socket."""
        self._messages.append(message)
        if message["type"].endswith(".disconnect"):
            self.told_disconnect = bool(self._receivers)
            self._disconnect = message
        elif len(self._messages) >= self._limit and not self.reading_paused and message["type"] != "http.request":
            self.reading_paused = True
            self._transport.pauseProducing()
        self._wake()

    async def receive(self) -> Message:
        """Returns the next message, waiting for it; once the client's end was read, that one again and again."""
        while not self._messages:
            if self._disconnect is not None:
                return {**self._disconnect}
            receiver = asyncio.get_running_loop().create_future()
            self._receivers.append(receiver)
            try:
                await receiver
            finally:
                if receiver in self._receivers:
                    self._receivers.remove(receiver)
                if receiver.done() and self._messages:
                    # A receiver that was woken and cancelled in the same tick hands its turn on.
                    self._wake()
        message = self._messages.popleft()
        if self.reading_paused and len(self._messages) <= self._limit // 2:
            self.reading_paused = False
            self._transport.resumeProducing()
        return message

    def _wake(self) -> None:
        while self._receivers:
            receiver = self._receivers.popleft()
            if not receiver.done():
                receiver.set_result(None)
                return


class Exchange(ABC):
    """A running application call with its connection."""

    def __init__(self, transport: "GatewayTransport", inbox_limit: int) -> None:
        self.transport = transport
        self.arrived_at = transport.arrived_at
        """When the request, or the handshake, had come in: before it was read, and waits for its turn to be started."""
        self.gate = WriteGate()
        self.control = TransportControl(self)
        self.inbox = Inbox(transport, inbox_limit)
        self.task: asyncio.Task[None] | None = None
        self.gone_at: float | None = None
        """When the client left before the exchange was complete (monotonic); None while it is there."""

    @abstractmethod
    async def send(self, message: Message) -> None:
        """ASGI `send`. Waits while the connection cannot take more; `ClientGoneError` after the client left."""

    @abstractmethod
    def send_now(self, data: bytes) -> bool:
        """Sends what `send` would, at once and from synchronous code; says whether it did.

        Of a response, a part of its body; it must have begun and be of no known length. Of a WebSocket, a text message
        (UTF-8). Nothing is sent where `send` would wait before it or raise: call that.
        """

    @abstractmethod
    def ended(self) -> None:
        """The application returned or failed: whatever it left open is closed."""

    async def run(self, application: Application, scope: MutableMapping[str, Any]) -> None:
        """Calls the application and sees to what it leaves behind."""
        try:
            await application(scope, self.inbox.receive, self.send)
        except ClientGoneError:
            logger.debug("The client of %s left.", scope["path"])
        except Exception:
            logger.exception("The application failed on %s.", scope["path"])
        finally:
            self.ended()

    def release(self) -> None:
        """The call is over: lets go of what refers back, so that a request is freed without the garbage collector.

        It would find twice a second what a few hundred requests left, and look at everything else meanwhile.
        """
        self.control.release()

    def client_gone(self) -> None:
        """The connection is lost: ends every wait of `send()`."""
        if self.gone_at is None:
            self.gone_at = time.monotonic()
        self.gate.stopProducing()

    async def wait_writable(self) -> None:
        """Waits until the connection takes more.

        Raises:
            ClientGoneError: It never will.
        """
        await self.gate.wait()
        if self.gone_at is not None:
            await self.raise_gone()

    async def raise_gone(self) -> NoReturn:
        """Raises `ClientGoneError`, late enough for an application that was told through `receive()`."""
        if self.inbox.told_disconnect:
            await asyncio.sleep(GONE_GRACE_SECONDS)
        raise ClientGoneError
