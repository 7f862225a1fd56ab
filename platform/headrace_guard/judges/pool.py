"""Judges windows off the event loop: a bounded queue, and a child process or a few that take from it."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from msgspec import Struct

from headrace_guard.judges.child_process import START_SECONDS, ChildDiedError, JudgingChild
from headrace_guard.judges.frames import Answer, AnyJob, Comparison, Job, Judged, Likeness, Trouble
from headrace_guard.judges.slices import slices
from headrace_guard.judges.verdicts import AskDeployment, JudgeFailure, Verdict
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.guard_policy import JudgeRule, WindowRule

log = logging.getLogger(__name__)


class PoolSettings(Struct, frozen=True, kw_only=True):
    """How a pool is made."""

    children: int = 1
    queue_limit: int = 256
    """Texts that may wait; one more is refused at once."""
    batch_limit: int = 8
    """Texts judged in one go; more would let the last one of them wait for all."""
    hang_seconds: float = 2.0
    """How long a child may take for one batch when somebody's deadline has passed meanwhile; then it is killed."""


class _Waiting:
    """A text in line."""

    def __init__(self, job: AnyJob, deadline: float) -> None:
        self.job = job
        self.deadline = deadline
        self.verdict: asyncio.Future[Judged | Likeness] = asyncio.get_running_loop().create_future()
        self.is_suspect = False
        """A child died or hung over it and others; it is judged alone now, so that only the guilty one fails."""

    def settle(self, answer: Answer) -> None:
        if self.verdict.done():
            return
        if isinstance(answer, Trouble):
            self.fail(JudgeFailure("error", answer.message))
        else:
            self.verdict.set_result(answer)

    def fail(self, failure: JudgeFailure) -> None:
        if not self.verdict.done():
            self.verdict.set_exception(failure)


class JudgePool:
    """Judges by all window rules. Nothing is started before the first text or `prepare`; belongs to one event loop."""

    def __init__(self, ask: AskDeployment | None = None, settings: PoolSettings = PoolSettings()) -> None:  # noqa: B008
        """`ask` answers judge rules; without it they fail. Whoever made it closes it."""
        self._ask = ask
        self._settings = settings
        self._line: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._runners: list[asyncio.Task[None]] = []
        self._children: dict[int, JudgingChild] = {}
        self._is_closed = False
        self._judging = 0
        self.restarts = 0
        """Children that were replaced."""

    async def __aenter__(self) -> Self:
        """Return the pool, which starts nothing yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    @property
    def waiting(self) -> int:
        """Return how many texts wait that no child has yet."""
        return len(self._line)

    @property
    def judging(self) -> int:
        """Return how many texts children have."""
        return self._judging

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the children."""
        return [child.pid for child in self._children.values()]

    async def prepare(self, rules: Iterable[WindowRule]) -> None:
        """Start a child and load what these rules need, so that the first text does not wait for it.

        What goes wrong is logged, and told again with each verdict that does not come.
        """
        local = [rule for rule in rules if not isinstance(rule, JudgeRule)]
        # To judge an empty text loads the models and embeds the examples.
        judged = await asyncio.gather(
            *(self.judge(rule, "", deadline_seconds=START_SECONDS) for rule in local), return_exceptions=True
        )
        for failure in judged:
            if isinstance(failure, JudgeFailure):
                log.warning("a judge is not ready reason=%s: %s", failure.reason, failure)

    async def judge(self, rule: WindowRule, text: str, *, tenant_id: str = "", deadline_seconds: float) -> Verdict:
        """Judge one text by one rule; a long text part by part, the worst part counts.

        Raises:
            JudgeFailure: there is no verdict.
        """
        if isinstance(rule, JudgeRule):
            if self._ask is None:
                raise JudgeFailure("error", "No deployments can be asked here.")
            return await self._ask.ask(rule, text, tenant_id, deadline_seconds)
        deadline = asyncio.get_running_loop().time() + deadline_seconds
        worst = Verdict(found=False, score=0.0)
        for part in slices(text):
            answer = await self._answer(Job(rule, part), deadline)
            assert isinstance(answer, Judged)  # noqa: S101  # what a job is answered with
            verdict = answer.verdict
            if verdict.found:
                return verdict
            worst = max(worst, verdict, key=lambda verdict: verdict.score)
        return worst

    async def compare(self, comparison: Comparison, *, deadline_seconds: float) -> Likeness:
        """Compare one question with others; the first one may be late, as the model is loaded for it.

        Raises:
            JudgeFailure: there is no answer, or not in time.
        """
        answer = await self._answer(comparison, asyncio.get_running_loop().time() + deadline_seconds)
        assert isinstance(answer, Likeness)  # noqa: S101  # what a comparison is answered with
        return answer

    async def close(self) -> None:
        """End the children; whoever waits gets a `JudgeFailure`."""
        self._is_closed = True
        await cancel_and_wait(*self._runners)
        for waiting in self._line:
            waiting.fail(JudgeFailure("error", "The judges are shutting down."))
        self._line.clear()

    async def _answer(self, job: AnyJob, deadline: float) -> Judged | Likeness:
        if self._is_closed:
            raise JudgeFailure("error", "The judges are shutting down.")
        if len(self._line) >= self._settings.queue_limit:
            raise JudgeFailure("overload", f"{len(self._line)} texts wait to be judged, as many as may.")
        waiting = _Waiting(job, deadline)
        self._line.append(waiting)
        self._wake()
        try:
            async with asyncio.timeout_at(deadline):
                return await waiting.verdict
        except TimeoutError:
            raise JudgeFailure("timeout", "The judge was late.") from None
        finally:
            waiting.verdict.cancel()
            if waiting in self._line:
                self._line.remove(waiting)

    def _wake(self) -> None:
        self._arrived.set()
        if not self._runners:
            self._runners = [
                asyncio.create_task(self._run(number), name=f"judges-{number}")
                for number in range(self._settings.children)
            ]

    # ---- one child's life

    async def _run(self, number: int) -> None:
        try:
            while True:
                batch = await self._next_batch()
                self._judging += len(batch)
                try:
                    await self._serve(number, batch)
                finally:
                    self._judging -= len(batch)
        finally:
            await self._end_child(number)

    async def _next_batch(self) -> list[_Waiting]:
        """Take the next texts from the line; a suspect alone."""
        batch: list[_Waiting] = []
        while not self._line:
            self._arrived.clear()
            await self._arrived.wait()
        while self._line and len(batch) < self._settings.batch_limit:
            if batch and (batch[0].is_suspect or self._line[0].is_suspect):
                break
            batch.append(self._line.popleft())
        return batch

    async def _serve(self, number: int, batch: Sequence[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        try:
            child = await self._child(number)
            await child.load([waiting.job for waiting in batch])
            batch = [waiting for waiting in batch if not waiting.verdict.done()]
            if not batch:
                return
            # A text whose deadline passes in a short queue must not cost the child that serves all others.
            patience = max(loop.time() + self._settings.hang_seconds, min(waiting.deadline for waiting in batch))
            async with asyncio.timeout_at(patience):
                answers = await child.judge([waiting.job for waiting in batch])
        except TimeoutError:
            log.warning("a judge's process hangs and is replaced texts=%d", len(batch))
            await self._replace(number)
            self._retry(batch, JudgeFailure("timeout", "The judge was late."))
        except ChildDiedError as error:
            log.warning("a judge's process is lost and is replaced texts=%d: %s", len(batch), error)
            await self._replace(number)
            self._retry(batch, JudgeFailure("crash", f"{error}."))
        except Exception:
            log.exception("a judge's process is replaced")
            await self._replace(number)
            self._retry(batch, JudgeFailure("error", "The judge failed."))
        except BaseException:
            for waiting in batch:
                waiting.fail(JudgeFailure("error", "The judges are shutting down."))
            raise
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                waiting.settle(answer)

    def _retry(self, batch: Sequence[_Waiting], failure: JudgeFailure) -> None:
        """Fail a text over which a child was lost; of several, judge each alone: only one is to blame."""
        if len(batch) == 1:
            batch[0].fail(failure)
            return
        for waiting in reversed(batch):
            if not waiting.verdict.done():
                waiting.is_suspect = True
                self._line.appendleft(waiting)

    async def _child(self, number: int) -> JudgingChild:
        child = self._children.get(number)
        if child is not None and not child.is_alive:
            log.warning("a judge's process has ended and is replaced")
            await self._replace(number)
            child = None
        if child is None:
            child = self._children[number] = await JudgingChild.start()
        return child

    async def _replace(self, number: int) -> None:
        self.restarts += 1
        await self._end_child(number)

    async def _end_child(self, number: int) -> None:
        child = self._children.pop(number, None)
        if child is not None:
            await child.kill()
