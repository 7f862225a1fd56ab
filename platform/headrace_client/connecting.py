"""What both clients need to make a connection: the address, the options, and what a failure means."""

from dataclasses import dataclass, field
from ssl import SSLCertVerificationError, SSLContext
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.typing import Subprotocol

from headrace_client.errors import ConnectionRejectedError
from headrace_client.frames import SUBPROTOCOL
from headrace_client.session import ConnectionUnusableError, Loss

PATH = "/v1/ws"
MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The replay of a long stream comes as one delta."""
CLOSE_SECONDS = 2.0
SILENCE_SECONDS = 20.0
"""After so long without a frame the server is asked whether it is there; while a request is queued nothing may come."""
PONG_SECONDS = 10.0
IDLE_SECONDS = 30.0
"""How long a connection whose stream has ended is kept for the next one."""
IDLE_CONNECTIONS = 8

BROKEN = (ConnectionClosed, ConnectionUnusableError, InvalidHandshake, EOFError, OSError)
"""What ends the use of a connection, or the attempt to make one; `TimeoutError` is an OSError."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect, and as whom. The key is in no repr."""

    url: str
    api_key: str = field(repr=False)
    ssl: SSLContext | None = None
    open_seconds: float = 10.0

    def options(self) -> dict[str, Any]:
        """Return the arguments of `connect` of the websockets library, sync and async."""
        return {
            "subprotocols": [Subprotocol(SUBPROTOCOL)],
            "additional_headers": {"Authorization": f"Bearer {self.api_key}"},
            "ssl": self.ssl,
            "compression": None,
            "open_timeout": self.open_seconds,
            "close_timeout": CLOSE_SECONDS,
            "max_size": MAX_FRAME_BYTES,
            # Ours: the library's takes a consumer that pauses for a server that is gone.
            "ping_interval": None,
        }


def websocket_url(base_url: str) -> str:
    """Return the WebSocket address of a server: of `https://host`, `https://host/v1`, or of a full `wss://` address.

    Raises:
        ValueError: it is no http, https, ws or wss address.
    """
    parts = urlsplit(base_url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in {"ws", "wss"} or not parts.netloc:
        raise ValueError(f"{base_url!r} is not an address like https://host")
    path = PATH if parts.path.rstrip("/") in {"", "/v1"} else parts.path
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def loss_of(error: BaseException) -> Loss:
    """Return what a failed or broken connection means.

    Raises:
        ConnectionRejectedError: another attempt would fail in the same way.
    """
    if isinstance(error, ConnectionUnusableError):
        return error.loss
    if isinstance(error, ConnectionClosed):
        frame = error.rcvd
        return Loss(frame.reason or "closed", frame.code) if frame is not None else Loss("the connection broke")
    if isinstance(error, InvalidStatus):
        return _refused(error)
    if isinstance(error, SSLCertVerificationError):
        raise ConnectionRejectedError(f"The server's certificate is not trusted: {error.verify_message}") from error
    if isinstance(error, InvalidHandshake) and not isinstance(error, InvalidMessage):
        raise ConnectionRejectedError(f"No headrace.v1 at this address: {error}") from error
    return Loss(str(error) or type(error).__name__)


def _refused(error: InvalidStatus) -> Loss:
    status = error.response.status_code
    if status != 429 and status < 500:
        raise ConnectionRejectedError(f"The server refused the connection with HTTP {status}.") from error
    wait = error.response.headers.get("Retry-After", "0")
    return Loss(f"HTTP {status}", retry_after_seconds=min(60.0, float(wait)) if wait.isdigit() else 0.0)
