"""The listening socket of the gateway."""

# ruff: noqa: N802  The camel-case name is Twisted's.

import resource
import sys

from twisted.internet import reactor, tcp
from twisted.web.http import HTTPFactory

from headrace.server.arrival import note_arrivals
from headrace.server.config import ServerConfig
from headrace.server.state import ServerState
from headrace.server.transport import GatewayTransport, WriteFlusher

_DESCRIPTORS = 65_536


class Listener(tcp.Port):  # type: ignore[misc]  # Twisted ships no types
    """Accepts connections; `transport` is Twisted's documented place for another transport class."""

    transport = GatewayTransport

    def __init__(self, config: ServerConfig, state: ServerState, flusher: WriteFlusher, factory: HTTPFactory) -> None:
        self.config = config
        self.state = state
        self.flusher = flusher
        super().__init__(config.port, factory, backlog=config.backlog, interface=config.host, reactor=reactor)

    def startListening(self) -> None:
        """See Twisted's port."""
        super().startListening()
        note_arrivals(self.socket)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on; the port is the real one where 0 was asked for."""
        host = self.getHost()
        return host.host, host.port


def raise_descriptor_limit() -> None:
    """Raises the soft limit of open files: 1,024 is the usual default, and fewer than the streams of one gateway."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
