"""The server object: Daphne's, with our channel, request, WebSocket, transport and clock in it."""

# ruff: noqa: ANN401  Daphne ships no types.

import asyncio
import logging
import time
from collections.abc import MutableMapping
from functools import partial
from typing import Any

from daphne.server import Server

from headrace.server.config import ServerConfig
from headrace.server.exchange import Application, Exchange
from headrace.server.flow_control import EXTENSION
from headrace.server.http_exchange import GatewayRequest, HttpExchange
from headrace.server.listener import Listener
from headrace.server.request_limits import GatewayHTTPFactory
from headrace.server.state import ServerState
from headrace.server.transport import WriteFlusher
from headrace.server.turns import Starter
from headrace.server.websocket import GatewayWebSocket, GatewayWebSocketFactory, WebSocketExchange

logger = logging.getLogger(__name__)

SERVER_NAME = "headrace"


class GatewayServer(Server):  # type: ignore[misc]  # Daphne ships no types
    """Connects Daphne's protocols to the application. `listen` starts it; it has no `run` of its own."""

    def __init__(self, application: Application, config: ServerConfig, state: ServerState) -> None:
        super().__init__(
            application, endpoints=[f"{config.host}:{config.port}"], signal_handlers=False, server_name=SERVER_NAME
        )
        self.config = config
        self.state = state
        self.application_state: dict[str, Any] = {}
        """What the application left in its lifespan state; each scope gets a copy."""
        self.exchanges: set[Exchange] = set()
        self._listener: Listener | None = None
        self._loop = asyncio.get_running_loop()
        self._starter = Starter(self._loop)

    # ---- life

    def listen(self) -> tuple[str, int]:
        """Starts to accept connections; returns host and port.

        Raises:
            CannotListenError: The address is taken or not ours.
        """
        self.ws_factory = GatewayWebSocketFactory(self)
        self.http_factory = GatewayHTTPFactory(self, GatewayRequest)
        self._listener = Listener(self.config, self.state, WriteFlusher(self._loop), self.http_factory)
        self._listener.startListening()
        return self._listener.address

    def stop_listening(self) -> None:
        """Accepts no more connections; those that are open stay."""
        if self._listener is not None:
            self._listener.stopListening()
            self._listener = None

    def check_deadlines(self) -> None:
        """Looks once over all connections and application calls; called a few times a second."""
        now, buffered = time.monotonic(), 0
        for transport in tuple(self.state.connections):
            buffered += transport.check_progress(now)
            if now >= transport.protocol.due:
                transport.protocol.check(now)
        self.state.buffered_lately = buffered
        for exchange in tuple(self.exchanges):
            overdue = exchange.gone_at is not None and now - exchange.gone_at > self.config.application_close_seconds
            if overdue and exchange.task is not None and not exchange.task.cancelling():
                logger.warning("The application did not end in time after its client left, and is cancelled.")
                exchange.task.cancel()

    # ---- called by Daphne's protocols

    def create_application(self, protocol: GatewayRequest | GatewayWebSocket, scope: MutableMapping[str, Any]) -> Any:
        """Starts the application for a request or a WebSocket; returns where its messages are put."""
        exchange: Exchange
        if isinstance(protocol, GatewayWebSocket):
            exchange = protocol.exchange = WebSocketExchange(protocol)
        else:
            exchange = protocol.exchange = HttpExchange(protocol)
        scope["asgi"] = {"version": "3.0", "spec_version": "2.4"}
        scope["state"] = dict(self.application_state)
        scope["extensions"] = {EXTENSION: exchange.control}
        self.exchanges.add(exchange)
        self._starter.start(partial(self._start, exchange, scope))
        self._count(exchange, 1)
        return exchange.inbox

    def _start(self, exchange: Exchange, scope: MutableMapping[str, Any]) -> None:
        exchange.task = self._loop.create_task(exchange.run(self.application, scope))
        exchange.task.add_done_callback(lambda _: self._exchange_done(exchange))

    def _exchange_done(self, exchange: Exchange) -> None:
        self.exchanges.discard(exchange)
        exchange.release()
        self._count(exchange, -1)
        self.state.changed.set()

    def _count(self, exchange: Exchange, change: int) -> None:
        if isinstance(exchange, WebSocketExchange):
            self.state.websockets += change
        else:
            self.state.http_requests += change

    def protocol_connected(self, protocol: Any) -> None:
        """Daphne keeps a table of connections here; ours is that of the transports."""

    def protocol_disconnected(self, protocol: Any) -> None:
        """The response of a request is complete, or its connection is lost."""
        if isinstance(protocol, GatewayRequest) and protocol.exchange is not None:
            protocol.exchange.request_done()
