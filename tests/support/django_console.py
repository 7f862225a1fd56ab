"""A Django that stays: it runs code that comes over a socket, one piece after another. To start one takes seconds.

`python -m tests.support.django_console SOCKET` is such a process; tests use `DjangoConsole`.
"""

import contextlib
import io
import json
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from tests.support.environment import REPOSITORY_ROOT
from tests.support.processes import Process

START_SECONDS = RUN_SECONDS = 180.0


class DjangoConsole:
    """Starts the process on a socket in a folder."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._address = str(folder / "django.sock")
        command = [sys.executable, "-m", "tests.support.django_console", self._address]
        self.process = Process(command, name="django", environ=environ, cwd=REPOSITORY_ROOT)

    def run(self, code: str) -> str:
        """Returns what the code printed.

        Raises:
            AssertionError: It failed; the message has its traceback.
        """
        self.process.wait_for_line("console ready", timeout=START_SECONDS)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(RUN_SECONDS)
            connection.connect(self._address)
            with connection.makefile("rwb") as stream:
                stream.write(json.dumps(code).encode() + b"\n")
                stream.flush()
                printed, problem = json.loads(stream.readline())
        assert not problem, f"{problem}\n{printed}"
        return str(printed)


def serve(address: str) -> None:
    """Runs what comes, until the process is ended."""
    import django  # noqa: PLC0415  in this process alone

    django.setup()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("console ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                stream.write(json.dumps(_run(json.loads(stream.readline()))).encode() + b"\n")


def _run(code: str) -> tuple[str, str]:
    """Returns what the code printed, and its traceback or ""."""
    from django.db import connections  # noqa: PLC0415

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<test>", "exec"), {"__name__": "__console__"})
    except BaseException:  # noqa: BLE001  it is told, whatever it is
        return printed.getvalue(), traceback.format_exc()
    finally:
        connections.close_all()
    return printed.getvalue(), ""


if __name__ == "__main__":
    serve(sys.argv[1])
