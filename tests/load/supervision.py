"""Rows in processes of their own: none can hang, or end, another one, and none leaves a process behind.

Each row leads a session, so that all that it starts can be ended at once. It is killed when it takes too long and when
the bench ends; when the bench itself is killed, its keeper (`keeper.py`) does it.
"""

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from headrace_launcher.parent_death import adopt_orphans
from headrace_wire.parent_death import die_with_parent
from tests.load.measurements import machine_cpu_seconds
from tests.load.results import DONE, FAILED, LEFT_OUT, TOO_LONG, Rendered

_KEEPER = Path(__file__).with_name("keeper.py")


class RowLeftOutError(Exception):
    """A row cannot be measured here. The message says why."""


class Outcome(Struct, frozen=True):
    """What a row's process hands over."""

    state: str = DONE
    note: str = ""
    tables: list[Rendered] = []
    figures: Any = None
    cpu_seconds: float = 0.0
    """Of the row with all that it started."""


Measure = Callable[[], tuple[list[Rendered], Any]]


class RowProcess:
    """One row that runs."""

    def __init__(self, name: str, measure: Measure, keeper: "Keeper", *, limit_seconds: float) -> None:
        self.name = name
        self.began = time.monotonic()
        self._limit_seconds = limit_seconds
        self._keeper = keeper
        # A short path: sockets lie below it.
        self.folder = Path(tempfile.mkdtemp(prefix="hrb-", dir="/tmp"))
        self._file = self.folder / "outcome.json"
        # A fork, so that what the bench has imported is there: seconds for each row.
        self._process: BaseProcess = multiprocessing.get_context("fork").Process(
            target=_row, args=(measure, self.folder, self._file, keeper, os.getpid())
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        keeper.watch(self.pid, self.folder)

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.began

    def wait(self) -> Outcome:
        """Returns what it gave once it has ended, or its time is over."""
        self._process.join(max(0.0, self.began + self._limit_seconds - time.monotonic()))
        late = self._process.is_alive()
        used = self.cpu_seconds() if late else 0.0
        self.end()
        outcome = self._outcome()
        if late and outcome is None:
            return Outcome(TOO_LONG, f"ended after {self._limit_seconds:.0f} s, its limit", cpu_seconds=used)
        return outcome or Outcome(FAILED, f"its process ended with {self._process.exitcode}")

    def end(self) -> None:
        """Kills what there still is of it."""
        descendants = self._descendants()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in descendants:  # some lead a session of their own
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.join()
        self._keeper.forget(self.pid)

    def clean(self) -> None:
        """Removes its temporary files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _outcome(self) -> Outcome | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Outcome)
        except FileNotFoundError:
            return None

    def cpu_seconds(self) -> float:
        """Returns what it and its descendants have used so far, those included that have ended."""
        return sum(sum(_cpu_times(process)) for process in self._descendants())

    def _descendants(self) -> list[psutil.Process]:
        """Itself first."""
        try:
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        except psutil.Error:
            return []


class Keeper:
    """The process that outlives a killed bench for a moment."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-S", str(_KEEPER)], stdin=subprocess.PIPE, text=True)

    def watch(self, group: int, folder: Path) -> None:
        """Has a process group killed, and its files removed, when the bench ends."""
        self._tell(f"+{group} {folder}")

    def forget(self, group: int) -> None:
        """Takes that back."""
        self._tell(f"-{group}")

    def let_go(self) -> None:
        """For a fork of the bench: it must not hold the pipe open."""
        assert self._process.stdin is not None
        os.close(self._process.stdin.fileno())

    def close(self) -> None:
        """Ends it, and every group that it still watches."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody ended it: rows are ended all the same, by us
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()


class Machine:
    """What ran on this machine since it was last asked."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._busy, self._stolen = machine_cpu_seconds(), stolen_seconds()

    def others(self, ours: float) -> tuple[float, float]:
        """Returns cores that were used by others than `ours` CPU seconds, and cores that the hypervisor took."""
        seconds = max(1e-6, time.monotonic() - self._at)
        others = max(0.0, machine_cpu_seconds() - self._busy - ours)
        return others / seconds, (stolen_seconds() - self._stolen) / seconds


def stolen_seconds() -> float:
    """Returns for how long the hypervisor had this machine's cores wait, since its start."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Has SIGTERM and SIGHUP end this process as Ctrl-C does: through its `finally`."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    # Under nohup, the end of the terminal is nothing to end by.
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _cpu_times(process: psutil.Process) -> list[float]:
    """Returns the CPU seconds of a process and of children that it has waited for; nothing once it has ended."""
    try:
        return list(process.cpu_times()[:4])
    except psutil.Error:
        return []


def _reap() -> None:
    """Takes note of children that have ended, adopted ones included."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _row(measure: Measure, folder: Path, file: Path, keeper: Keeper, bench: int) -> None:
    """The row's process."""
    os.setsid()
    die_with_parent(bench)
    adopt_orphans()  # so that the CPU of an engine that its worker did not wait for is counted too
    keeper.let_go()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    tempfile.tempdir = str(folder)
    os.environ["TMPDIR"] = str(folder)
    try:
        tables, figures = measure()
        outcome = Outcome(tables=tables, figures=figures)
    except RowLeftOutError as error:
        outcome = Outcome(LEFT_OUT, str(error))
    except Exception:  # noqa: BLE001  whatever it is: the other rows go on
        outcome = Outcome(FAILED, traceback.format_exc())
    # Of those that are still there, first: an engine that ends in between is counted twice, and not left out.
    cpu = sum(sum(_cpu_times(process)) for process in psutil.Process().children(recursive=True))
    _reap()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu += sum(one.ru_utime + one.ru_stime for one in used)
    content = msgspec.json.encode(msgspec.structs.replace(outcome, cpu_seconds=cpu))
    part = file.with_suffix(".part")
    part.write_bytes(content)
    part.rename(file)
