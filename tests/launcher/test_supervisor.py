"""The supervisor with real processes. Its scenarios run in a process of their own, see `supervised`."""

import os
import re
import signal
import sys

import psutil
import pytest

from tests.conftest import Spawn
from tests.support.processes import Process

ENDED_WITHIN_SECONDS = 120


def run(spawn: Spawn, scenario: str) -> str:
    """Runs a scenario to its end and returns its log."""
    process: Process = spawn([sys.executable, "-m", "tests.launcher.supervised", scenario], name=scenario)
    assert process.wait(timeout=ENDED_WITHIN_SECONDS) == 0, process.log
    assert "Traceback" not in process.log, process.log
    assert "descendants left: 0" in process.log
    return process.log


def test_scale_starts_what_is_missing_and_ends_the_newest(spawn: Spawn) -> None:
    log = run(spawn, "scale")
    assert "scaled to 3 sleeper-1 sleeper-2 sleeper-3" in log
    assert "scaled to 1 sleeper-1\n" in log
    assert "scaled to 2 sleeper-1 sleeper-4" in log, "a name is never given twice"
    assert "starts again" not in log, "who was ended on purpose stays away"


def test_victims_end_first_then_the_newest(spawn: Spawn) -> None:
    assert "left sleeper-2 sleeper-3\n" in run(spawn, "victims")


def test_who_is_ending_is_not_waited_for_and_counts_no_more(spawn: Spawn) -> None:
    log = run(spawn, "ending_elsewhere")
    assert "serving 1 of 2" in log
    assert "again stubborn-1 stubborn-2 stubborn-3" in log


def test_each_process_gets_a_port_of_its_own(spawn: Spawn) -> None:
    found = re.findall(r"listener-\d \| port (\d+) up", run(spawn, "ports"))
    assert len(found) == len(set(found)) == 2
    assert "7" in found, "the first has the one that was given"


def test_process_that_keeps_failing_is_started_with_growing_delays(spawn: Spawn) -> None:
    log = run(spawn, "restart")
    delays = re.findall(r"failing-\d \| ended with exit status 3; starts again in ([\d.]+) s", log)
    assert delays[:3] == ["0.5", "1.0", "2.0"]
    assert "failures 3" in log


def test_killed_process_is_replaced(spawn: Spawn) -> None:
    log = run(spawn, "killed_member")
    assert "sleeper-1 | ended by SIGKILL" in log
    assert "again sleeper-2" in log


def test_who_was_told_to_leave_is_not_replaced(spawn: Spawn) -> None:
    log = run(spawn, "leaving")
    assert "worker-1 | has left as it was told to" in log
    assert "worker-2 | ended by SIGKILL" in log
    assert "failures 1 left worker-3 worker-4" in log


def test_who_was_told_to_be_replaced_is_so_at_once(spawn: Spawn) -> None:
    log = run(spawn, "replacing")
    assert re.findall(r"with exit status 75; starts again in ([\d.]+) s", log) == ["0.0"] * 3
    assert "failures 0 left worker-4" in log


def test_stop_leaves_no_grandchild_even_outside_its_group(spawn: Spawn) -> None:
    log = run(spawn, "grandchildren")
    children = re.search(r"children (\d+) (\d+)", log)
    assert children is not None
    assert not any(psutil.pid_exists(int(pid)) for pid in children.groups())


def test_tiers_end_from_the_highest_to_the_lowest(spawn: Spawn) -> None:
    log = run(spawn, "order")
    assert re.findall(r"(\w+)-1 \| farewell", log) == ["worker", "gateway", "store"]


@pytest.mark.parametrize("scenario", ["hurry", "too_slow"])
def test_process_that_ignores_sigterm_is_killed(spawn: Spawn, scenario: str) -> None:
    log = run(spawn, scenario)
    assert ("is killed" in log) == (scenario == "too_slow")


def test_missing_program_is_an_error_that_names_it(spawn: Spawn) -> None:
    assert "LaunchError /nowhere/program cannot be started: No such file" in run(spawn, "missing")


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_children_end_when_the_supervisor_is_killed(spawn: Spawn) -> None:
    supervisor: Process = spawn([sys.executable, "-m", "tests.launcher.supervised", "until_killed"], name="supervisor")
    pids = supervisor.wait_for_line(r"^pids (\d+) (\d+) (\d+)$").groups()
    children = [psutil.Process(int(pid)) for pid in pids]
    os.kill(supervisor.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=ENDED_WITHIN_SECONDS)
    assert alive == []
