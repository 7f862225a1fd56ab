"""Runs a stage of the tests, and looks again at the few that failed: alone, in a process of their own.

A test that passes then was disturbed by what ran beside it: a race, of the test or of the product, which the end of the
stage names so that somebody mends it. One that fails again fails the stage, and so do many at once.
"""

import subprocess
import sys
from collections.abc import Sequence

import pytest

IN_TWO = "--in-two"
"""Ours: run in two processes, dealt out by whole files in the order of `tests.support.dealing`."""
_DEALT = ("-n", "2", "--no-loadscope-reorder", "--dist", "loadfile")
MOST = 4
"""Of tests that are looked at again. More do not fail by chance."""


class _Failures:
    """Hears of each test that failed, in whichever process it ran."""

    def __init__(self) -> None:
        self.node_ids: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.node_ids[report.nodeid] = None


def run_stage(arguments: Sequence[str]) -> int:
    """Runs pytest with the arguments, of which `--in-two` is ours; returns its exit status, or that of the second look.

    The second look has the failed tests alone, and none of the options, which choose and deal out.
    """
    dealt = _DEALT if IN_TWO in arguments else ()
    own = [argument for argument in arguments if argument != IN_TWO]
    failures = _Failures()
    status = int(pytest.main([*own, *dealt], plugins=[failures]))
    failed = list(failures.node_ids)
    if status != pytest.ExitCode.TESTS_FAILED or not failed:
        return status
    if len(failed) > MOST:
        _say(f"{len(failed)} tests failed: too many to look at them again.")
        return status
    _say(f"{len(failed)} of the tests failed. Looking at them again, alone:", *failed)
    again = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False)
    if again.returncode == pytest.ExitCode.OK:
        _say("PASSED ONLY ALONE, at the second look. Each of these has a race, to be mended:", *failed)
    return again.returncode


def _say(title: str, *lines: str) -> None:
    print("\n".join(["", f"== {title}", *(f"   {line}" for line in lines), ""]), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run_stage(sys.argv[1:]))
