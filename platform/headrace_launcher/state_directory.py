"""The folder that one installation keeps its state in: one launcher at a time, secrets for its owner's eyes only."""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from headrace_launcher.errors import LaunchError

_LOCK_NAME = "up.lock"
_SECRET_NAME = "secret_key"  # noqa: S105  a file's name
_LOOK_AGAIN_SECONDS = 0.1


class StateDirectory:
    """An existing state directory whose lock this process holds; made by `claim`.

    The lock's file descriptor (`lock_fd`) is meant to be passed to every child: the directory then stays taken until
    the last process that uses it is gone, also when the launcher itself was killed.
    """

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self.lock_fd = lock_fd

    @classmethod
    def claim(cls, path: Path, *, patience_seconds: float = 20.0) -> Self:
        """Makes the directory where it is missing and takes its lock.

        Children of a launcher that was killed get `patience_seconds` to end.

        Raises:
            LaunchError: A Headrace runs on this directory, or it cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock_fd = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LaunchError(f"HEADRACE_STATE_DIR: {path} cannot be used: {error.strerror}.") from error
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = int(os.pread(lock_fd, 20, 0) or b"0")
                if _is_alive(owner) or time.monotonic() > deadline:
                    os.close(lock_fd)
                    raise LaunchError(
                        f"A Headrace runs on {path} already (process {owner}). Stop it, or set HEADRACE_STATE_DIR "
                        "(and HEADRACE_PORT) for a second one."
                    ) from None
                # Its launcher is gone and its last children are ending; flock cannot wait with a deadline.
                time.sleep(_LOOK_AGAIN_SECONDS)
            else:
                os.ftruncate(lock_fd, 0)
                os.pwrite(lock_fd, str(os.getpid()).encode(), 0)
                return cls(path, lock_fd)

    def release(self) -> None:
        """Gives up this process's hold of the lock."""
        os.close(self.lock_fd)

    def secret_key(self) -> str:
        """Returns the installation's secret, making it once."""
        file = self.path / _SECRET_NAME
        if not file.exists():
            self.write_private(_SECRET_NAME, secrets.token_urlsafe(48))
        return file.read_text("ascii")

    def write_json(self, name: str, content: Mapping[str, object]) -> None:
        """Replaces a file, readable by its owner alone, by `content`."""
        self.write_private(name, json.dumps(content, indent=2) + "\n")

    def write_private(self, name: str, text: str) -> None:
        """Replaces a file, readable by its owner alone, in one step."""
        scratch = self.path / f".{name}.new"
        scratch.unlink(missing_ok=True)
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        scratch.replace(self.path / name)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        with suppress(FileNotFoundError):
            (self.path / name).unlink()


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
