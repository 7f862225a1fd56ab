"""The owner's end of one judging child."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence

from headrace_guard.judges.frames import (
    CACHED_RULES,
    PREFIX_BYTES,
    Answer,
    AnyJob,
    Batch,
    Comparison,
    Prepare,
    decode_answers,
    encode,
)
from headrace_wire.guard_policy import TopicRule

START_SECONDS = 30.0
"""For the start of a child and for loading a model; on a machine that is busy with an engine's start, too."""


class ChildDiedError(Exception):
    """The child has ended, or never began."""


class JudgingChild:
    """Starts a child and asks it, one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take over a process; `start` makes one."""
        self._process = process
        self._loaded: set[object] = set()

    @classmethod
    async def start(cls) -> "JudgingChild":
        """Start a child and wait until it listens.

        Raises:
            ChildDiedError: it did not.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "headrace_guard.judges.child", str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise ChildDiedError(f"no process for a judge: {error}") from error
        child = cls(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                await child._read()
        except TimeoutError as error:
            await child.kill()
            raise ChildDiedError("a judge's process did not start in time") from error
        except BaseException:
            await child.kill()
            raise
        return child

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return self._process.returncode is None

    async def load(self, jobs: Sequence[AnyJob]) -> None:
        """Have it load what these jobs need, where it has not; what goes wrong shows when they are judged.

        Raises:
            ChildDiedError: it died, or does not answer.
        """
        new = {need: job for job in jobs if (need := _need(job)) not in self._loaded}
        if not new:
            return
        try:
            async with asyncio.timeout(START_SECONDS):
                rules = tuple(job.rule for job in new.values() if not isinstance(job, Comparison))
                await self._ask(Prepare(rules, compares=len(rules) < len(new)))
        except TimeoutError as error:
            raise ChildDiedError("a judge's process did not load its models in time") from error
        if len(self._loaded) >= CACHED_RULES:
            self._loaded.clear()  # it forgets, too; what it still knows is loaded in no time
        self._loaded.update(new)

    async def judge(self, jobs: Sequence[AnyJob]) -> list[Answer]:
        """Return one answer for each job, in order.

        Raises:
            ChildDiedError: it died.
        """
        answers = await self._ask(Batch(tuple(jobs)))
        if len(answers) != len(jobs):
            raise ChildDiedError("a judge's process answers something else")
        return answers

    async def kill(self) -> None:
        """End it at once, in whatever state it is."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _ask(self, request: Prepare | Batch) -> list[Answer]:
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101  # a pipe was asked for
        try:
            stdin.write(encode(request))
            await stdin.drain()
        except OSError as error:
            raise ChildDiedError("a judge's process has ended") from error
        return await self._read()

    async def _read(self) -> list[Answer]:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101
        try:
            prefix = await stdout.readexactly(PREFIX_BYTES)
            return decode_answers(await stdout.readexactly(int.from_bytes(prefix, "big")))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ChildDiedError("a judge's process has ended") from error


def _need(job: AnyJob) -> object:
    """Return what tells apart what jobs need: the model of their kind, and the embeddings of a rule's examples."""
    if isinstance(job, Comparison):
        return Comparison
    return job.rule.examples if isinstance(job.rule, TopicRule) else type(job.rule)
