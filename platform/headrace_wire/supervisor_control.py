"""How other processes of a machine ask its supervisor for workers: one JSON line each way over a unix socket.

The socket lies in the state directory, mode 0600. It is reached through the directory's descriptor: a socket's path may
have some 100 bytes, that of a state directory more.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

SOCKET_NAME = "control.sock"
MOST_BYTES = 65_536
"""Of a line, either way."""
MOST_WORKERS = 1000
ANSWER_SECONDS = 10.0
DEPLOYMENT = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*\Z"
"""What a deployment may be called; it becomes an argument of a command."""


class WorkersAsked(Struct, frozen=True, omit_defaults=True):
    """Asks how many workers of a deployment there are to be; with `count`, has there be so many."""

    deployment: str
    count: int | None = None
    victims: tuple[int, ...] = ()
    """Process ids of those that end first where there are too many."""


class WorkersTold(Struct, frozen=True, omit_defaults=True):
    """The answer."""

    wanted: int = 0
    """As many are kept running."""
    pids: tuple[int, ...] = ()
    """Running now, without those that are ending."""
    error: str = ""
    """Why nothing was done."""


class SupervisorAwayError(Exception):
    """No supervisor answers there. The message says why."""


def encode(message: WorkersAsked | WorkersTold) -> bytes:
    """Return a message's line."""
    return msgspec.json.encode(message) + b"\n"


def listening_socket(folder: Path) -> socket.socket:
    """Return a bound socket that only its owner may use; what an earlier process left is replaced.

    Raises:
        OSError: it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _reachable(folder) as path, suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108  not a place of its own
    with _reachable(folder) as path:
        listener.bind(path)
        os.chmod(path, 0o600)  # noqa: PTH101  before anybody can connect: it does not listen yet
    return listener


def ask(folder: Path, message: WorkersAsked, *, seconds: float = ANSWER_SECONDS) -> WorkersTold:
    """Ask the supervisor of a state directory.

    Raises:
        SupervisorAwayError: none is there, or it does not answer in time.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _reachable(folder) as path:
            connection.settimeout(seconds)
            connection.connect(path)
            connection.sendall(encode(message))
            line = _line(connection)
        return msgspec.json.decode(line, type=WorkersTold)
    except TimeoutError as error:
        raise SupervisorAwayError(f"The supervisor did not answer within {seconds:.0f} s.") from error
    except OSError as error:
        raise SupervisorAwayError(f"No supervisor of make up can be reached here ({error.strerror}).") from error
    except msgspec.DecodeError as error:
        raise SupervisorAwayError("The supervisor went away, or answered in another form.") from error


def _line(connection: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < MOST_BYTES:
        chunk = connection.recv(4096)
        if not chunk:
            break
        line += chunk
    return bytes(line)


@contextmanager
def _reachable(folder: Path) -> Iterator[str]:
    """A short path of the socket, valid inside."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)
