"""Numbers: percentiles of durations, CPU time of processes, and what is kept of repeated rounds."""

import contextlib
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import psutil
from msgspec import Struct


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the smallest value that at least `share` (0 to 1) of all values do not exceed; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Spread(Struct, frozen=True):
    """Durations in milliseconds: how many, and their percentiles."""

    count: int
    p50: float
    p95: float
    p99: float
    highest: float

    @classmethod
    def of_seconds(cls, seconds: Iterable[float]) -> Self:
        """Sums up durations given in seconds."""
        ms = [value * 1000 for value in seconds]
        return cls(len(ms), percentile(ms, 0.5), percentile(ms, 0.95), percentile(ms, 0.99), max(ms, default=math.nan))


class Processes:
    """The CPU time of some processes, by name, since the last look."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._before = self._cpu_seconds()

    def take(self) -> dict[str, float]:
        """Returns the CPU seconds that each used since the last call."""
        now = self._cpu_seconds()
        used = {name: now[name] - self._before[name] for name in now}
        self._before = now
        return used

    def rss_mib(self) -> dict[str, float]:
        """Returns what each holds of memory."""
        return {name: process.memory_info().rss / 2**20 for name, process in self._processes.items()}

    def _cpu_seconds(self) -> dict[str, float]:
        return {name: cpu_seconds(process.pid) for name, process in self._processes.items()}


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process's threads from the scheduler's own account, in nanoseconds.

    What `psutil` and `ps` read counts in ticks of 10 ms: too coarse for what an idle process uses in three seconds.
    """
    total = 0
    for account in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            total += int(account.read_text("ascii").split(maxsplit=1)[0])
    return total / 1e9


def machine_cpu_seconds() -> float:
    """Returns the CPU time of everything that ran on this machine since its start."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def median_of(rounds: Iterable[float]) -> float:
    """Returns the median of what the rounds gave; rounds that gave no number do not count."""
    known = [value for value in rounds if not math.isnan(value)]
    return statistics.median(known) if known else math.nan
