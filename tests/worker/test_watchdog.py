"""A worker whose event loop stands still ends, and says where it stood."""

import subprocess
import sys

import pytest

from tests.support.environment import child_environment

STILL = """
import asyncio, time
from headrace_worker.watchdog import watch_loop

async def main():
    watchdog = asyncio.create_task(watch_loop({seconds}))
    await asyncio.sleep(0.1)
    {hang}

asyncio.run(main())
"""
HANGS = {
    "asleep": "time.sleep(120)",
    "never lets go of the interpreter lock": "max(iter(int, 1))",
}


def run(hang: str, *, seconds: float = 3.0) -> "subprocess.CompletedProcess[str]":
    """A busy machine may let the whole process stand still for a second: before it hangs, that is no hang."""
    return subprocess.run(
        [sys.executable, "-c", STILL.format(seconds=seconds, hang=hang)],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_a_loop_that_stands_still_ends_its_process(hang: str) -> None:
    done = run(hang)
    assert done.returncode == 1, done.stderr
    assert "Timeout" in done.stderr
    assert "main" in done.stderr, "where it stood"


def test_a_loop_that_turns_goes_on() -> None:
    done = run("await asyncio.sleep(5); watchdog.cancel()", seconds=4.0)
    assert (done.returncode, done.stderr) == (0, "")
