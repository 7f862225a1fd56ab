"""One answer's guard: what goes to the log, what waits, what ends it. No I/O; who judges windows is told by `due`."""

from collections.abc import Callable, Sequence

from headrace_guard.combination import BoundWindowRule, Guard
from headrace_guard.findings import Subject, hit_record
from headrace_guard.scanner import TextGuard
from headrace_guard.windows import Window, Windows
from headrace_wire.guard_policy import AnyRule, Direction
from headrace_wire.interventions import Intervention
from headrace_wire.messages import Replacement

SEPARATOR = "\n\n"
"""Between what stays of an answer and its replacement."""


class OutputGuard:
    """Text comes in as it is generated; `push` and `passed` return what the log may have of it.

    Until the input has passed (`is_open`), nothing may be pushed.
    """

    def __init__(self, guard: Guard, subject: Subject, report: Callable[[Intervention], None]) -> None:
        self.guard = guard
        self.subject = subject
        self.report = report
        self.is_open = not guard.input_rules
        self.has_windows = bool(guard.output_rules)
        """Whether windows may be due; else nobody needs to ask."""
        self.is_blocked = False
        """The answer ends here, with `replacement`; nothing more is released."""
        self._replacement_text = ""
        self._retract: tuple[int, int] | None = None
        """Position and characters up to which the answer stays, where what follows is out already."""
        self._scan: TextGuard | None = guard.output_scanner.open() if guard.output_scanner is not None else None
        self._windows: Windows | None = None
        if guard.output_rules:
            self._windows = Windows(
                chunk_size=guard.chunk_size, context_size=guard.context_size, holds=guard.holds_windows
            )
        self._has_released = False
        """Whether anything of the answer is out."""

    # ---- text

    def push(self, text: str, tokens: int) -> str:
        """Take the text of so many more tokens; return what may go out."""
        scan = self._scan
        if scan is not None:
            text = scan.push(text)
            if scan.hits:
                self._take_hits(scan)
        if self._windows is not None:
            return self._through_windows(self._windows, text, tokens)
        if text:
            self._has_released = True
        return text

    def end(self) -> str:
        """The answer has ended; return what may go out of what was held. Windows may still be due."""
        scan = self._scan
        text = ""
        if scan is not None and scan.block is None:
            text = scan.flush()
            if scan.hits:
                self._take_hits(scan)
        if self._windows is not None:
            text = self._through_windows(self._windows, text, 0)
            self._windows.complete()
        elif text:
            self._has_released = True
        return text

    def replay(self, texts: Sequence[str], released: str) -> str | None:
        """Go through an earlier owner's tokens, whose log has `released`; return what may follow it at once.

        None where the log has something that this guard would not have released.
        """
        windows, self._windows = self._windows, None
        passed: list[str] = []
        for text in texts:
            out = self.push(text, 1)
            passed.append(out)
            if windows is not None:
                windows.push(out, 1)
        whole = "".join(passed)
        self._windows = windows
        if not whole.startswith(released):
            return None
        if windows is not None and self.guard.holds_windows:
            windows.skip(len(released))
            self._has_released = bool(released)
            return ""
        self._has_released = bool(whole)
        return whole[len(released) :]

    @property
    def replacement(self) -> Replacement:
        """Return what stands in the place of a blocked answer, or of its rest."""
        if self._retract is not None:
            retract_from, keep = self._retract
            return Replacement((SEPARATOR if keep else "") + self._replacement_text, retract_from, keep)
        return Replacement((SEPARATOR if self._has_released else "") + self._replacement_text)

    @property
    def is_settled(self) -> bool:
        """Whether, after `end`, nothing waits for a judge."""
        return self._windows is None or self._windows.is_settled or not self.guard.blocks_windows

    @property
    def most_tokens(self) -> int:
        """Position up to which the engine may generate now; 0 for no limit."""
        return self._windows.most_tokens if self._windows is not None and self.guard.holds_windows else 0

    # ---- windows

    def due(self) -> Window | None:
        """Return the window to be judged now; None while one is, or there is none."""
        if self._windows is None or self.is_blocked:
            return None
        return self._windows.due()

    def passed(self) -> str:
        """The window that was due has passed; return what may go out now."""
        if self._windows is None or self.is_blocked:
            return ""
        text = self._windows.passed()
        if text:
            self._has_released = True
        return text

    def tripped(self, bound: BoundWindowRule) -> None:
        """The window that was due is blocked by this rule."""
        windows = self._windows
        if windows is not None and not self.guard.holds_windows:
            self._retract = windows.passed_tokens, windows.passed_characters
        self._block(bound.policy, bound.rule)

    def block_input(self, bound: BoundWindowRule) -> None:
        """The request itself is blocked by this rule."""
        self._block(bound.policy, bound.rule)

    # ---- inside

    def _through_windows(self, windows: Windows, text: str, tokens: int) -> str:
        if tokens or text:
            windows.push(text, tokens)
            if self.guard.holds_windows:
                return ""
        if text:
            self._has_released = True
        return text

    def _take_hits(self, scan: TextGuard) -> None:
        for hit in scan.hits:
            self.report(hit_record(self.guard, self.subject, hit, Direction.OUTPUT))
        scan.hits.clear()
        if scan.block is not None and not self.is_blocked:
            self._block(scan.block.bound.policy, scan.block.bound.rule)

    def _block(self, policy: int, rule: AnyRule) -> None:
        self.is_blocked = True
        self._replacement_text = self.guard.replacement(policy, rule)
