"""`python -m headrace_launcher up`, whole, with the simulated engine: from an empty state directory to nothing left."""

import json
import os
import signal
import socket
import stat
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.environment import child_environment
from tests.support.processes import Process, free_port

UP = [sys.executable, "-m", "headrace_launcher", "up"]
READY, READY_SECONDS, END_SECONDS = "Headrace is ready", 240.0, 120.0


class Installation:
    """A state directory and a port; `start` runs it once more."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.port = free_port()
        self.runs: list[Process] = []

    @property
    def environ(self) -> dict[str, str]:
        return child_environment(
            HEADRACE_ENGINE="simulated",
            HEADRACE_STATE_DIR=str(self.state_dir),
            HEADRACE_PORT=str(self.port),
        )

    def start(self, **environ: str) -> Process:
        run = Process(UP, name="up", environ={**self.environ, **environ})
        self.runs.append(run)
        return run

    def start_and_wait(self) -> Process:
        run = self.start()
        run.wait_for_line(READY, timeout=READY_SECONDS)
        return run

    @property
    def up_json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.state_dir / "up.json").read_text())
        return content


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("installation") / "state")
    yield installation
    for run in installation.runs:
        run.stop(timeout=END_SECONDS)


@pytest.fixture(scope="module")
def running(installation: Installation) -> Process:
    """The installation, ready."""
    return installation.start_and_wait()


def tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.usefixtures("running")
def test_up_file_is_private_and_complete(installation: Installation) -> None:
    content = installation.up_json
    assert stat.S_IMODE((installation.state_dir / "up.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((installation.state_dir / "secret_key").stat().st_mode) == 0o600
    assert set(content) == {"base_url", "ws_url", "admin", "user", "api_key", "model", "pids"}
    assert content["base_url"] == f"http://127.0.0.1:{installation.port}"
    assert content["ws_url"] == f"ws://127.0.0.1:{installation.port}/v1/ws"
    assert set(content["admin"]) == set(content["user"]) == {"email", "password"}
    assert set(content["pids"]) == {"supervisor", "redis-1", "gateway-1", "worker-1", "celery-1", "beat-1"}
    assert all(psutil.pid_exists(pid) for pid in content["pids"].values())


@pytest.mark.usefixtures("running")
def test_key_of_the_up_file_gets_an_answer(installation: Installation) -> None:
    content = installation.up_json
    body = {"model": content["model"], "max_tokens": 5, "messages": [{"role": "user", "content": "Hello!"}]}
    request = urllib.request.Request(
        f"{content['base_url']}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {content['api_key']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        completion = json.load(answer)
    assert completion["usage"]["completion_tokens"] == 5
    assert completion["choices"][0]["message"]["content"]


def test_gateway_that_is_killed_comes_back_and_the_up_file_follows(
    installation: Installation, running: Process
) -> None:
    os.kill(installation.up_json["pids"]["gateway-1"], signal.SIGKILL)
    running.wait_for_line(r"gateway-1 \| ended by SIGKILL")
    running.wait_for_line(r"gateway-2 \| .*Listening on")
    pids = installation.up_json["pids"]
    assert "gateway-1" not in pids
    assert psutil.pid_exists(pids["gateway-2"])


def test_second_run_on_the_same_state_directory_is_refused(installation: Installation, running: Process) -> None:
    second = installation.start(HEADRACE_PORT=str(free_port()))
    assert second.wait(timeout=END_SECONDS) == 1
    assert f"runs on {installation.state_dir} already (process {running.pid})" in second.log
    assert "HEADRACE_STATE_DIR" in second.log


def test_port_in_use_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    other = Installation(tmp_path / "other")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", other.port))
        taken.listen()
        with other.start() as run:
            assert run.wait(timeout=END_SECONDS) == 1
    assert f"Port {other.port} on 127.0.0.1 cannot be used" in run.log
    assert "HEADRACE_PORT" in run.log
    assert not other.state_dir.exists()


def test_bad_environment_is_refused_in_one_line_before_anything_is_made(tmp_path: Path) -> None:
    bad = Installation(tmp_path / "bad")
    with bad.start(DATABASE_URL="mysql://somewhere/db") as run:
        assert run.wait(timeout=END_SECONDS) == 1
    assert "DATABASE_URL: must be a URL" in run.log
    assert "Traceback" not in run.log
    assert not bad.state_dir.exists()


def test_engine_metrics_are_served_on_loopback(running: Process) -> None:
    url = running.wait_for_line(r"metrics on (http://\S+)")[1]
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert b"headrace_" in answer.read()


def test_secrets_are_not_in_the_output_of_the_processes(installation: Installation, running: Process) -> None:
    before_welcome, _, _ = running.log.partition(READY)
    assert installation.up_json["api_key"] not in before_welcome
    assert (installation.state_dir / "secret_key").read_text() not in running.log


def test_terminate_ends_everything_and_the_next_run_is_the_same(installation: Installation, running: Process) -> None:
    before, processes = installation.up_json, tree(running.pid)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=END_SECONDS) == 0
    assert psutil.wait_procs(processes, timeout=0)[1] == []
    assert not (installation.state_dir / "up.json").exists()

    again = installation.start_and_wait()
    after = installation.up_json
    assert {name: after[name] for name in after if name != "pids"} == {
        name: before[name] for name in before if name != "pids"
    }
    assert "Traceback" not in again.log


def test_killed_launcher_leaves_nothing_and_the_next_run_starts(installation: Installation) -> None:
    launcher = installation.runs[-1]
    processes = tree(launcher.pid)
    launcher.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, timeout=END_SECONDS)
    assert alive == []
    installation.start_and_wait().send_signal(signal.SIGINT)
    assert installation.runs[-1].wait(timeout=END_SECONDS) == 0
