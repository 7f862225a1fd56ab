"""The supervisor's socket, asked as Celery asks it."""

import contextlib
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace_wire.supervisor_control import (
    SOCKET_NAME,
    SupervisorAwayError,
    WorkersAsked,
    WorkersTold,
    ask,
    listening_socket,
)
from tests.conftest import Spawn
from tests.support.processes import Process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose path is longer than a socket's may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    return folder


@pytest.fixture
def supervisor(spawn: Spawn, folder: Path) -> Iterator[Process]:
    command = [sys.executable, "-m", "tests.launcher.supervised", "control", str(folder)]
    process = spawn(command, name="control", ready="listening")
    yield process
    process.stop(timeout=60)
    assert "Traceback" not in process.log, process.log
    assert "descendants left: 0" in process.log
    assert not (folder / SOCKET_NAME).exists()


@pytest.mark.usefixtures("supervisor")
def test_workers_are_asked_for_and_told(folder: Path) -> None:
    assert stat.S_IMODE((folder / SOCKET_NAME).stat().st_mode) == 0o600
    assert ask(folder, WorkersAsked("org/model:1")) == WorkersTold()
    told = ask(folder, WorkersAsked("org/model:1", 3))
    assert (told.wanted, len(told.pids), told.error) == (3, 3, "")
    assert ask(folder, WorkersAsked("org/model:1", 3)) == told, "an absolute number: twice is once"
    assert ask(folder, WorkersAsked("another")) == WorkersTold()

    first = told.pids[0]
    told = ask(folder, WorkersAsked("org/model:1", 2, (first,)))
    assert told.wanted == 2
    assert first not in told.pids
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended already
        psutil.Process(first).wait(timeout=30)
    assert not psutil.pid_exists(first)


@pytest.mark.usefixtures("supervisor")
@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (WorkersAsked("--help", 1), "No deployment has such a name."),
        (WorkersAsked("a b", 1), "No deployment has such a name."),
        (WorkersAsked("tiny", 1001), "From 0 to 1000 workers."),
        (WorkersAsked("tiny", -1), "From 0 to 1000 workers."),
    ],
)
def test_nonsense_is_refused_with_its_reason(folder: Path, asked: WorkersAsked, why: str) -> None:
    assert ask(folder, asked).error == why
    assert ask(folder, WorkersAsked("tiny")).wanted == 0


@pytest.mark.usefixtures("supervisor")
def test_garbage_is_told_so_and_harms_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET_NAME)
        connection.sendall(b"{\n")
        assert b"Not understood" in connection.recv(4096)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(SOCKET_NAME)
        assert ask(folder, WorkersAsked("tiny", 1)).wanted == 1


def test_nobody_there_is_said(folder: Path) -> None:
    with pytest.raises(SupervisorAwayError, match="No supervisor"):
        ask(folder, WorkersAsked("tiny"))
    with listening_socket(folder), pytest.raises(SupervisorAwayError, match="No supervisor"):
        ask(folder, WorkersAsked("tiny"))
    with listening_socket(folder) as deaf:
        deaf.listen()
        with pytest.raises(SupervisorAwayError, match="did not answer"):
            ask(folder, WorkersAsked("tiny"), seconds=0.1)
