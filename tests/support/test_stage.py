"""A stage of the tests fails where a test does, and not where that was disturbed once."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.stage import IN_TWO, MOST

ONCE = """
from pathlib import Path
import pytest
SEEN = Path(__file__).with_suffix(".seen")

def test_that_is_disturbed_once(): {body}

def test_beside_it(): pass
"""
DISTURBED = """
    with SEEN.open("a") as seen:
        seen.write(".")
    assert SEEN.read_text() != "."
"""
NEVER = """
    assert not "ready"
"""


def stage(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    environ = child_environment(PYTHONPATH=str(REPOSITORY_ROOT))
    command = [sys.executable, "-m", "tests.support.stage", *arguments, "-p", "no:django", "-q", "."]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", [[], [IN_TWO]])
def test_what_was_disturbed_once_passes_and_is_named(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "test_once.py").write_text(ONCE.format(body=DISTURBED))
    ended = stage(tmp_path, *how)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "test_once.seen").read_text() == ".."
    assert ended.stderr.count("test_once.py::test_that_is_disturbed_once") == 2
    assert "PASSED ONLY ALONE" in ended.stderr
    assert "test_beside_it" not in ended.stderr


def test_what_fails_again_fails_the_stage(tmp_path: Path) -> None:
    (tmp_path / "test_never.py").write_text(ONCE.format(body=NEVER))
    ended = stage(tmp_path)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert "PASSED ONLY ALONE" not in ended.stderr


def test_many_failures_are_not_looked_at_again(tmp_path: Path) -> None:
    for number in range(MOST + 1):
        (tmp_path / f"test_once_{number}.py").write_text(ONCE.format(body=DISTURBED))
    ended = stage(tmp_path)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert f"{MOST + 1} tests failed" in ended.stderr
    assert {file.read_text() for file in tmp_path.glob("*.seen")} == {"."}


@pytest.mark.parametrize(("content", "status"), [("import nothing_of_that_name", 2), ("", 5)])
def test_other_ends_of_pytest_are_the_ends_of_the_stage(tmp_path: Path, content: str, status: int) -> None:
    (tmp_path / "test_other.py").write_text(content)
    ended = stage(tmp_path)
    assert ended.returncode == status
    assert "again" not in ended.stderr
