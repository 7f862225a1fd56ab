"""Window rules at work: each stream has one window judged at a time, by all its rules at once."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from headrace_guard.combination import BoundWindowRule
from headrace_guard.findings import window_record
from headrace_guard.judges.verdicts import JudgeFailure, Verdict
from headrace_guard.windows import Window
from headrace_wire.guard_policy import Direction, GuardTerms, WindowRule
from headrace_wire.interventions import Outcome
from headrace_worker.failures import BLOCKED_INPUT, INTERNAL, NOT_JUDGED
from headrace_worker.generation import Generation
from headrace_worker.guard_metrics import GuardMetrics
from headrace_worker.output_guard import OutputGuard

log = logging.getLogger(__name__)

MISUNDERSTOOD = "a verdict cannot be understood stream_id=%s"


class Judges(Protocol):
    """Whoever judges windows."""

    async def judge(self, rule: WindowRule, text: str, *, tenant_id: str, deadline_seconds: float) -> Verdict:
        """Judge one text by one rule.

        Raises:
            JudgeFailure: there is no verdict.
        """
        ...

    async def prepare(self, rules: Iterable[WindowRule]) -> None:
        """Load what these rules need. Never raises."""
        ...


class Decision(Struct, frozen=True):
    """What all rules say of one window."""

    block: BoundWindowRule | None = None
    """The first that blocks it."""
    has_failed: bool = False
    """A judge failed whose policy lets nothing pass unjudged."""
    is_clean: bool = True
    """Every rule has said that it found nothing."""


class PassedTexts:
    """Texts of tenants in which some policies' rules found nothing: a conversation brings its messages every time.

    No tenant profits from another's, or it could tell by the time what that one has sent.
    """

    MOST = 10_000

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    @staticmethod
    def key(tenant_id: str, policies: Sequence[str], text: str) -> bytes:
        """Return what stands for this text of a tenant under these policies."""
        return hashlib.sha256("\0".join((tenant_id, *policies, text)).encode("utf-8", "surrogatepass")).digest()

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def add(self, key: bytes) -> None:
        """Remember a text; the oldest goes where there are too many."""
        self._keys[key] = None
        if len(self._keys) > self.MOST:
            self._keys.popitem(last=False)


class Judging:
    """Has windows judged and tells when one was. Belongs to one event loop."""

    def __init__(
        self, judges: Judges, tasks: asyncio.TaskGroup, metrics: GuardMetrics, *, judged: Callable[[Generation], None]
    ) -> None:
        """`judged` is called after each step: the stream may have ended, or may go on further than before."""
        self._judges = judges
        self._tasks = tasks
        self._metrics = metrics
        self._judged = judged
        self._under_way: set[str] = set()
        self._passed = PassedTexts()

    def check_input(self, generation: Generation) -> None:
        """Have the request itself judged, beside its prefill; nothing goes out until that has passed."""
        guard = generation.guard
        if guard is not None and not guard.is_open and generation.request_id not in self._under_way:
            self._under_way.add(generation.request_id)
            self._tasks.create_task(self._judge_input(generation, guard))

    def consider(self, generation: Generation) -> None:
        """Have the next window judged, if there is one."""
        guard = generation.guard
        if guard is None or not guard.is_open or generation.request_id in self._under_way:
            return
        window = guard.due()
        if window is not None:
            self._under_way.add(generation.request_id)
            self._tasks.create_task(self._judge_windows(generation, guard, window))

    async def _judge_input(self, generation: Generation, guard: OutputGuard) -> None:
        decision: Decision | None = None
        try:
            decision = await self._decide_input(generation, guard)
        except Exception:  # one stream's trouble is not the others'
            log.exception(MISUNDERSTOOD, generation.stream_id)
            self._metrics.judge_failed("unreadable")
        finally:
            self._under_way.discard(generation.request_id)
        if generation.ended is not None or generation.is_leaving:
            return
        if decision is None:
            generation.fail(INTERNAL)
        elif decision.has_failed:
            generation.fail(NOT_JUDGED)
        elif decision.block is not None:
            guard.block_input(decision.block)
            refuses = guard.guard.refuses_input(decision.block.policy)
            generation.input_blocked(BLOCKED_INPUT if refuses else None)
        else:
            generation.input_passed(time.monotonic())
        self._judged(generation)

    async def _decide_input(self, generation: Generation, guard: OutputGuard) -> Decision:
        """Ask for every text of the request that has not passed here lately, the newest first."""
        terms, end = generation.request.guard or GuardTerms(), 0
        windows: list[Window] = []
        for text in terms.input_texts:
            windows.append(Window(text, end, end + len(text), 0))
            end += len(text)
        for window in reversed(windows):
            key = PassedTexts.key(guard.subject.tenant_id, terms.policies, window.text)
            if key in self._passed:
                continue
            decision = await self._decide(guard, guard.guard.input_rules, window, Direction.INPUT)
            if decision.block is not None or decision.has_failed:
                return decision
            if decision.is_clean:
                self._passed.add(key)
        return Decision()

    async def _judge_windows(self, generation: Generation, guard: OutputGuard, window: Window) -> None:
        due: Window | None = window
        try:
            while due is not None:
                decision = await self._decide(guard, guard.guard.output_rules, due, Direction.OUTPUT)
                if generation.ended is not None or generation.is_leaving:
                    return
                if decision.has_failed:
                    generation.fail(NOT_JUDGED)
                elif decision.block is not None:
                    guard.tripped(decision.block)
                generation.judged()
                self._judged(generation)
                due = guard.due()
        except Exception:
            log.exception(MISUNDERSTOOD, generation.stream_id)
            self._metrics.judge_failed("unreadable")
            if generation.ended is None and not generation.is_leaving:
                generation.fail(INTERNAL)
                self._judged(generation)
        finally:
            self._under_way.discard(generation.request_id)

    async def _decide(
        self, guard: OutputGuard, rules: Sequence[BoundWindowRule], window: Window, direction: Direction
    ) -> Decision:
        """Ask all rules at once; the strictest answer counts."""
        begun_at = time.monotonic()
        answers = await asyncio.gather(*(self._ask(guard, bound, window.text) for bound in rules))
        seconds = time.monotonic() - begun_at
        self._metrics.judged(direction, seconds)
        block: BoundWindowRule | None = None
        has_failed, is_clean = False, True
        for bound, answer in zip(rules, answers, strict=True):
            outcome = self._outcome(guard, bound, answer)
            if outcome is None:
                continue
            is_clean = False
            finding = answer.reason if isinstance(answer, JudgeFailure) else answer.finding
            record = window_record(
                guard.guard,
                guard.subject,
                bound,
                window,
                direction,
                finding=finding,
                outcome=outcome,
                held_ms=seconds * 1000,
            )
            guard.report(record)
            has_failed = has_failed or outcome is Outcome.FAILED
            if outcome is Outcome.BLOCKED and block is None:
                block = bound
        return Decision(block, has_failed, is_clean)

    async def _ask(self, guard: OutputGuard, bound: BoundWindowRule, text: str) -> Verdict | JudgeFailure:
        deadline = guard.guard.policies[bound.policy].judge_deadline_seconds
        try:
            return await self._judges.judge(
                bound.rule, text, tenant_id=guard.subject.tenant_id, deadline_seconds=deadline
            )
        except JudgeFailure as failure:
            return failure
        except Exception:
            log.exception("a judge failed in its own way rule=%s", bound.rule.key)
            return JudgeFailure("error", "The judge failed.")

    def _outcome(self, guard: OutputGuard, bound: BoundWindowRule, answer: Verdict | JudgeFailure) -> Outcome | None:
        if isinstance(answer, JudgeFailure):
            self._metrics.judge_failed(answer.reason)
            log.warning("no verdict rule=%s reason=%s: %s", bound.rule.key, answer.reason, answer)
            return Outcome.FAILED if guard.guard.is_closed(bound) else Outcome.UNCHECKED
        if not answer.found:
            return None
        return Outcome.BLOCKED if bound.blocks else Outcome.FLAGGED
