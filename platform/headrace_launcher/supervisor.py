"""A small process supervisor for one machine: scale a kind of process, restart what ends, end everything in order."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from headrace_launcher.errors import LaunchError
from headrace_launcher.orphans import bury_group, end_orphans
from headrace_launcher.parent_death import adopt_orphans, lead_group_and_follow_parent
from headrace_launcher.ports import free_port
from headrace_launcher.process_output import PrefixedOutput
from headrace_wire.draining import RESTART_STATUS

_BACKOFF_FIRST_SECONDS = 0.5
_BACKOFF_LAST_SECONDS = 30.0
_SETTLED_SECONDS = 30.0
"""A process that ran this long starts without back-off again."""
_LOG_TAIL_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKind:
    """Processes that are run alike, `<name>-1`, `<name>-2` and so on."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(repr=False)
    tier: int
    """Tiers end one after another, the highest first."""
    stop_seconds: float = 10.0
    """From SIGTERM to SIGKILL of its whole process group."""
    may_leave: bool = False
    """A process that ends with status 0 was told to, and is not replaced: there is to be one less of this kind."""
    death_signal: int = signal.SIGTERM
    """What a process gets when the supervisor dies without having ended it."""
    port_variables: Sequence[str] = ()
    """Names of variables in which each process gets a free port; the first keeps one that `environ` names."""


@dataclass(eq=False, slots=True)
class _Member:
    """One running process."""

    name: str
    process: asyncio.subprocess.Process
    started: float
    watch: asyncio.Task[None] | None = None
    wanted: bool = True

    def signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class Supervisor:
    """Owns child processes. Use it inside one event loop of the main thread; `stop` must be awaited at the end.

    `pass_fds` stay open in every child. `on_change` is called after a process was started or ended.
    """

    def __init__(
        self,
        output: PrefixedOutput,
        *,
        pass_fds: Sequence[int] = (),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._output = output
        self._pass_fds = tuple(pass_fds)
        self._on_change = on_change
        self._kinds: dict[str, ProcessKind] = {}
        self._wanted: dict[str, int] = {}
        self._members: dict[str, list[_Member]] = {}
        self._failures: dict[str, int] = {}
        self._restarts: set[asyncio.Task[None]] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._scaling = asyncio.Lock()
        self._numbers: dict[str, int] = {}
        self._hurry = asyncio.Event()
        self._stopping = False
        adopt_orphans()

    def add(self, kind: ProcessKind) -> None:
        """Makes a kind known; nothing runs yet."""
        self._kinds[kind.name] = kind
        self._wanted[kind.name] = 0
        self._members[kind.name] = []

    def know(self, kind: ProcessKind) -> None:
        """Makes a kind known unless one of its name is."""
        if kind.name not in self._kinds:
            self.add(kind)

    @property
    def kinds(self) -> Sequence[str]:
        """Names of the kinds that are known."""
        return tuple(self._kinds)

    @property
    def pids(self) -> dict[str, int]:
        """Running processes by name."""
        return {member.name: member.process.pid for members in self._members.values() for member in members}

    def failures(self, name: str) -> int:
        """How often in a row a process of this kind ended by itself soon after its start."""
        return self._failures.get(name, 0)

    def wanted(self, name: str) -> int:
        """How many processes of a kind there are to be; 0 of a kind that is not known."""
        return self._wanted.get(name, 0)

    def serving(self, name: str) -> tuple[int, ...]:
        """Pids of a kind's processes, in the order of their start, without those that are ending."""
        return tuple(member.process.pid for member in self._members.get(name, ()) if member.wanted)

    async def scale(self, name: str, count: int, *, victims: Collection[int] = (), wait: bool = True) -> None:
        """Runs `count` processes of a kind: starts what is missing, ends what is too many.

        Those whose pids are `victims` end first, then the newest. Without `wait` it returns while they are ending.

        Raises:
            LaunchError: A process cannot be started at all (its program is missing).
        """
        async with self._scaling:
            kind = self._kinds[name]
            self._wanted[name] = count
            while len(self.serving(name)) < count and not self._stopping:
                await self._start(kind)
            serving = [member for member in self._members[name] if member.wanted]
            serving.sort(key=lambda member: member.process.pid in victims)
            endings = [self._let_go(member, kind) for member in serving[count:]]
        if wait:
            await asyncio.gather(*endings)

    def _let_go(self, member: _Member, kind: ProcessKind) -> asyncio.Task[None]:
        member.wanted = False
        task = asyncio.create_task(self._end(member, kind))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def hurry(self) -> None:
        """Cuts every grace period short: whoever waits for an end kills now."""
        self._hurry.set()

    async def stop(self) -> None:
        """Ends everything, tier by tier from the highest; afterwards no descendant is left."""
        self._stopping = True
        for task in self._restarts:
            task.cancel()
        async with self._scaling:
            for tier in sorted({kind.tier for kind in self._kinds.values()}, reverse=True):
                kinds = [kind for kind in self._kinds.values() if kind.tier == tier]
                await asyncio.gather(
                    *(self._end(member, kind) for kind in kinds for member in list(self._members[kind.name]))
                )
        await asyncio.gather(*self._endings)
        end_orphans()

    async def _start(self, kind: ProcessKind) -> None:
        number = self._numbers.get(kind.name, 0) + 1
        # A pipe of our own: with asyncio's, waiting for the process would also wait for children that hold it open.
        output, child_output = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *kind.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=child_output,
                stderr=child_output,
                env=self._environ(kind),
                pass_fds=self._pass_fds,
                preexec_fn=partial(lead_group_and_follow_parent, os.getpid(), kind.death_signal),
            )
        except OSError as error:
            os.close(output)
            raise LaunchError(f"{kind.command[0]} cannot be started: {error.strerror}.") from error
        finally:
            os.close(child_output)
        self._numbers[kind.name] = number
        member = _Member(f"{kind.name}-{number}", process, time.monotonic())
        self._members[kind.name].append(member)
        member.watch = asyncio.create_task(self._watch(kind, member, output))
        self._on_change()

    def _environ(self, kind: ProcessKind) -> dict[str, str]:
        is_first = not self._members[kind.name]
        names = [name for name in kind.port_variables if not (is_first and name in kind.environ)]
        return {**kind.environ, **{name: str(free_port()) for name in names}}

    async def _watch(self, kind: ProcessKind, member: _Member, output: int) -> None:
        """Copies a process's output until it ends, clears up after it, and has it replaced where nobody ended it."""
        copying = asyncio.create_task(self._output.copy(member.name, output))
        status = await member.process.wait()
        member.signal_group(signal.SIGKILL)  # children that it left behind
        await asyncio.wait([copying], timeout=_LOG_TAIL_SECONDS)
        copying.cancel()
        await asyncio.to_thread(bury_group, member.process.pid)
        self._members[kind.name].remove(member)
        self._on_change()
        if not member.wanted or self._stopping:
            return
        if kind.may_leave and status == 0:
            self._wanted[kind.name] = max(0, self._wanted[kind.name] - 1)
            self._output.line(member.name, "has left as it was told to; it is not started again")
        else:
            self._replace(kind, member, status)

    def _replace(self, kind: ProcessKind, member: _Member, status: int) -> None:
        settled = time.monotonic() - member.started > _SETTLED_SECONDS
        failures = self._failures[kind.name] = 1 if settled else self.failures(kind.name) + 1
        delay = min(_BACKOFF_FIRST_SECONDS * 2 ** (failures - 1), _BACKOFF_LAST_SECONDS)
        if status == RESTART_STATUS:  # it was told to, for a fresh one
            self._failures[kind.name], delay = 0, 0.0
        self._output.line(member.name, f"ended {_described(status)}; starts again in {delay:.1f} s")
        task = asyncio.create_task(self._start_later(kind, delay))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _start_later(self, kind: ProcessKind, delay: float) -> None:
        await asyncio.sleep(delay)
        async with self._scaling:
            if len(self.serving(kind.name)) < self._wanted[kind.name] and not self._stopping:
                await self._start(kind)

    async def _end(self, member: _Member, kind: ProcessKind) -> None:
        member.wanted = False
        with suppress(ProcessLookupError):
            # Not its children: how they end is its own business, a worker's engine still has streams to finish.
            member.process.terminate()
        assert member.watch is not None  # noqa: S101
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([member.watch, hurried], timeout=kind.stop_seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not member.watch.done():
            if not self._hurry.is_set():
                self._output.line(member.name, f"did not end within {kind.stop_seconds:.0f} s and is killed")
            member.signal_group(signal.SIGKILL)
        await member.watch


def _described(status: int) -> str:
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
