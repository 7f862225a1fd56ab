"""How full the memory is that a worker may use: its machine's, its control group's where that is smaller, its GPUs'."""

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def memory_usage(cgroup: Path = _CGROUP) -> float:
    """Return the share in use, 0 to 1, of whichever is fullest. Reads files: some 50 us."""
    return max(psutil.virtual_memory().percent / 100, _of_control_group(cgroup))


def _of_control_group(folder: Path) -> float:
    """What the kernel ends processes for; pages of files that it can drop do not count."""
    try:
        limit = (folder / "memory.max").read_text("ascii").strip()
        used = int((folder / "memory.current").read_text("ascii"))
        for line in (folder / "memory.stat").read_text("ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                used -= int(value)
        return min(max(used / int(limit), 0.0), 1.0) if limit != "max" else 0.0
    except (OSError, ValueError):
        return 0.0
