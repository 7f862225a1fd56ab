"""One launcher per state directory, and what lies in it is for its owner alone."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_launcher.errors import LaunchError
from headrace_launcher.state_directory import StateDirectory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDirectory]:
    directory = StateDirectory.claim(tmp_path / "state")
    yield directory
    directory.release()


def test_secret_is_made_once_and_kept(state: StateDirectory) -> None:
    secret = state.secret_key()
    assert len(secret) >= 50
    assert state.secret_key() == secret
    assert mode(state.path / "secret_key") == 0o600
    assert mode(state.path) == 0o700


def test_files_are_private_whatever_the_umask(state: StateDirectory) -> None:
    before = os.umask(0)
    try:
        state.write_json("up.json", {"pids": {"supervisor": 1}})
        state.write_json("up.json", {"pids": {"supervisor": 2}})
    finally:
        os.umask(before)
    assert mode(state.path / "up.json") == 0o600
    assert json.loads((state.path / "up.json").read_text()) == {"pids": {"supervisor": 2}}
    assert sorted(path.name for path in state.path.iterdir()) == ["up.json", "up.lock"], "no scratch file is left"


def test_second_claim_names_the_first_and_says_what_to_do(state: StateDirectory) -> None:
    with pytest.raises(LaunchError, match=rf"process {os.getpid()}.*set HEADRACE_STATE_DIR"):
        StateDirectory.claim(state.path)


def test_claim_succeeds_after_release(tmp_path: Path) -> None:
    StateDirectory.claim(tmp_path).release()
    StateDirectory.claim(tmp_path).release()


def test_claim_waits_for_the_children_of_a_launcher_that_died(tmp_path: Path) -> None:
    first = StateDirectory.claim(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[first.lock_fd]) as child:
        assert child.stdin is not None
        # Only the child holds the lock from here on, and the recorded launcher is a process that ended.
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        os.pwrite(first.lock_fd, str(ended.pid).encode(), 0)
        first.release()
        with pytest.raises(LaunchError, match="runs on"):
            StateDirectory.claim(tmp_path, patience_seconds=0.2)
        child.stdin.close()
        StateDirectory.claim(tmp_path).release()


def test_directory_that_cannot_be_made_is_an_error_that_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"^HEADRACE_STATE_DIR: "):
        StateDirectory.claim(tmp_path / "file" / "state")
