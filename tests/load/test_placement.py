"""What keeps cores awake must keep nobody waiting."""

import os
import time
from pathlib import Path

from tests.load.placement import kept_awake


def gives_way(pid: int) -> bool:
    group = Path(f"/proc/{pid}/autogroup")  # not there where the kernel groups no sessions
    return os.sched_getscheduler(pid) == os.SCHED_IDLE and (
        not group.exists() or group.read_text().endswith("nice 19\n")
    )


def test_loops_that_keep_cores_awake_give_way_to_other_sessions() -> None:
    with kept_awake(min(os.sched_getaffinity(0))) as pids:
        deadline = time.monotonic() + 30
        while not all(map(gives_way, pids)) and time.monotonic() < deadline:
            time.sleep(0.02)  # until their interpreters have started
        assert all(map(gives_way, pids))
