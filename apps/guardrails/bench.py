"""What a policy does to a text: judged as gateways and workers judge it, step by step, and nothing of it is kept.

Tokens are cut by length, about as long as English ones are; times are those of the pace that was asked for, and of the
judges as they took them here.
"""

import asyncio
import re
import time
from dataclasses import dataclass, field

import msgspec

from headrace_guard.combination import BoundWindowRule, Guard
from headrace_guard.judges.pool import JudgePool
from headrace_guard.judges.verdicts import JudgeFailure, Verdict
from headrace_guard.scanner import Hit, Scanner
from headrace_guard.windows import Window, Windows
from headrace_wire.guard_policy import Action, AnyRule, Direction, GuardPolicy, PolicyMode, WindowRule

MAX_CHARACTERS = 20_000
_TOKEN = re.compile(r"\s?\S{1,4}|\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule found in a place."""

    rule: AnyRule
    action: Action
    finding: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a rule says of a window."""

    rule: WindowRule
    verdict: Verdict | None
    failure: JudgeFailure | None
    seconds: float
    blocks: bool

    @property
    def ends(self) -> bool:
        """Whether the text ends with it."""
        return self.blocks and self.verdict is not None and self.verdict.found


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedWindow:
    """One window and what was said of it."""

    number: int
    context: str
    """What the window before had as well."""
    text: str
    """What is new in it."""
    answers: list[Answer]


@dataclass(slots=True, kw_only=True)
class BenchReport:
    """All of it."""

    direction: Direction
    tokens: int
    result: str = ""
    """What the reader gets, without a replacement."""
    replacement: str = ""
    """What stands behind it where it was blocked."""
    is_blocked: bool = False
    is_refused: bool = False
    """It is a request, and would be answered with an error."""
    is_failed: bool = False
    """A judge failed, and the policy lets nothing pass unjudged."""
    is_unchecked: bool = False
    """A judge failed, and the policy lets it pass."""
    is_retracted: bool = False
    """Readers had seen what was blocked (stream_first)."""
    findings: list[Finding] = field(default_factory=list)
    windows: list[JudgedWindow] = field(default_factory=list)
    held_characters: int = 0
    """Most that waited at one time."""
    first_delay_seconds: float | None = None
    """By how much the first text comes later than the first token; None where nothing comes."""
    guard_seconds: float = 0.0
    """Computing time of the rules that go along with each token, here."""


def tokens_of(text: str) -> list[str]:
    """Returns the text in pieces about as long as tokens."""
    return _TOKEN.findall(text)


async def bench_run(
    *, policy: GuardPolicy, text: str, direction: Direction, tpot_seconds: float, tenant_id: str
) -> BenchReport:
    """Judges a text as if the policy were enforced; judges are started for it, and ended.

    Raises:
        headrace_guard.patterns.PatternError: A rule cannot be compiled.
    """
    guard = await asyncio.to_thread(Guard, [msgspec.structs.replace(policy, mode=PolicyMode.ENFORCED)])
    report = BenchReport(direction=direction, tokens=len(tokens_of(text)))
    async with JudgePool() as judges:
        bench = _Bench(guard, report, judges, tenant_id)
        if direction is Direction.INPUT:
            await judges.prepare(bound.rule for bound in guard.input_rules)
            await bench.judge_input(text)
        else:
            await judges.prepare(bound.rule for bound in guard.output_rules)
            await bench.judge_output(tokens_of(text), tpot_seconds)
    return report


class _Pace:
    """When text goes out, against when its tokens come."""

    def __init__(self, tpot_seconds: float) -> None:
        self._tpot = tpot_seconds
        self._judged_until = 0.0
        self.first_delay: float | None = None
        self.most_held = 0

    def out(self, token: int, text: str, *, held: int, judge_seconds: float = 0.0) -> None:
        """After this token, and a judge's time, this text goes out, and so many characters wait."""
        at = max(token * self._tpot, self._judged_until) + judge_seconds
        self._judged_until = at if judge_seconds else self._judged_until
        self.most_held = max(self.most_held, held)
        if text and self.first_delay is None:
            self.first_delay = at


class _Bench:
    def __init__(self, guard: Guard, report: BenchReport, judges: JudgePool, tenant_id: str) -> None:
        self._guard = guard
        self.report = report
        self._judges = judges
        self._tenant_id = tenant_id

    async def judge_input(self, text: str) -> None:
        """A request is judged as a whole."""
        steps = await asyncio.to_thread(self._scan, self._guard.input_scanner, [text])
        self.report.result = "".join([released for released, _held in steps])
        if not self.report.is_blocked and self._guard.input_rules:
            await self._judge(self._guard.input_rules, Window(text, 0, len(text), 0), "")
        if self.report.is_blocked:
            self.report.result = ""
            self.report.is_refused = self._guard.refuses_input(0)

    async def judge_output(self, pieces: list[str], tpot_seconds: float) -> None:
        """An answer is judged as it comes, at this pace."""
        steps = await asyncio.to_thread(self._scan, self._guard.output_scanner, pieces)
        pace = _Pace(tpot_seconds)
        if self._guard.output_rules:
            self.report.result = await self._through_windows(steps, pace)
        else:
            for number, (text, held) in enumerate(steps):
                pace.out(number, text, held=held)
            self.report.result = "".join([text for text, _held in steps])
        self.report.held_characters, self.report.first_delay_seconds = pace.most_held, pace.first_delay

    def _scan(self, scanner: Scanner | None, pieces: list[str]) -> list[tuple[str, int]]:
        """Returns what light rules release after each piece, and how much they hold; last what comes at the end."""
        if scanner is None:
            return [*[(piece, 0) for piece in pieces], ("", 0)]
        guard, steps, begun_at = scanner.open(), list[tuple[str, int]](), time.perf_counter()
        for piece in pieces:
            steps.append((guard.push(piece), guard.held))
            if guard.block is not None:
                break
        else:
            steps.append((guard.flush(), 0))
        self.report.guard_seconds = time.perf_counter() - begun_at
        self.report.findings = [_finding(hit) for hit in guard.hits]
        if guard.block is not None:
            self._block(guard.block.bound.rule)
        return steps

    async def _through_windows(self, steps: list[tuple[str, int]], pace: _Pace) -> str:
        guard, out, context = self._guard, list[str](), ""
        windows = Windows(chunk_size=guard.chunk_size, context_size=guard.context_size, holds=guard.holds_windows)
        is_blocked_before, self.report.is_blocked = self.report.is_blocked, False
        for number, (text, held) in enumerate(steps):
            is_last = number == len(steps) - 1
            windows.push(text, 0 if is_last else 1)
            if is_last:
                windows.complete()
            if not guard.holds_windows:
                out.append(text)
                pace.out(number, text, held=held)
            while (window := windows.due()) is not None:
                waited = held + windows.held_characters if guard.holds_windows else held
                seconds, is_over = await self._judge(guard.output_rules, window, context)
                if is_over:
                    pace.out(number, "", held=waited, judge_seconds=seconds)
                    self.report.is_retracted = not guard.holds_windows
                    return "".join(out)[: windows.passed_characters]
                passed = windows.passed()
                context = window.text[windows.passed_characters - window.start :]
                out.append(passed)
                pace.out(number, passed, held=waited, judge_seconds=seconds)
        self.report.is_blocked = is_blocked_before
        return "".join(out)

    async def _judge(self, rules: tuple[BoundWindowRule, ...], window: Window, context: str) -> tuple[float, bool]:
        """Returns how long it took, and whether the text ends here."""
        answers = await asyncio.gather(*(self._ask(bound, window.text) for bound in rules))
        report = self.report
        report.windows.append(
            JudgedWindow(
                number=len(report.windows) + 1, context=context, text=window.text[len(context) :], answers=answers
            )
        )
        for bound, answer in zip(rules, answers, strict=True):
            if answer.ends and not report.is_blocked:
                self._block(answer.rule)
            if answer.failure is not None:
                report.is_failed = report.is_failed or self._guard.is_closed(bound)
                report.is_unchecked = report.is_unchecked or not self._guard.is_closed(bound)
        return max(answer.seconds for answer in answers), report.is_blocked or report.is_failed

    async def _ask(self, bound: BoundWindowRule, text: str) -> Answer:
        deadline = self._guard.policies[bound.policy].judge_deadline_seconds
        begun_at, verdict, failure = time.perf_counter(), None, None
        try:
            verdict = await self._judges.judge(bound.rule, text, tenant_id=self._tenant_id, deadline_seconds=deadline)
        except JudgeFailure as error:
            failure = error
        seconds = time.perf_counter() - begun_at
        return Answer(rule=bound.rule, verdict=verdict, failure=failure, seconds=seconds, blocks=bound.blocks)

    def _block(self, rule: AnyRule) -> None:
        self.report.is_blocked = True
        self.report.replacement = self._guard.replacement(0, rule)


def _finding(hit: Hit) -> Finding:
    return Finding(
        rule=hit.bound.rule, action=hit.action, finding=hit.finding, text=hit.text, start=hit.start, end=hit.end
    )
