"""A text as the automaton reads it: threads of matches that have begun.

There is more than one way to read a backslash: as itself, and as the beginning of an escape of JSON, within JSON within
JSON too. Both are read side by side: where an escape begins, `Escape` keeps what was known before it; when it is
complete, that goes on with what the escape stands for, and joins the plain reading.
"""

from collections.abc import Callable, Iterable
from typing import Self

from headrace_guard.automaton import Automaton, State
from headrace_guard.nfa import Accept
from headrace_guard.normalisation import ESCAPES, LONGEST_BACKSLASH_RUN, fold

Report = Callable[[Accept, int, int], None]
"""Called with what was found, its first offset, and the offset after its last."""

FEW_THREADS = 16

_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class Reading:
    """Threads, the oldest first, and where the next match can begin."""

    def __init__(self, threads: dict[State, int], starts: tuple[State, ...], end: int) -> None:
        """Go on from there; `end` is the offset after the last character that was not invisible."""
        self.threads = threads
        self.starts = starts
        self.end = end
        self.most_threads = FEW_THREADS
        """So many are kept without a look whether they repeat each other."""

    def copy(self) -> Self:
        """Return one that goes its own way."""
        return type(self)(self.threads, self.starts, self.end)

    def feed(self, automaton: Automaton, character: str, start: int, end: int, report: Report) -> None:
        """Take one folded character, which is the text from `start` to `end`."""
        moved: dict[State, int] = {}
        threads: Iterable[tuple[State, int]] = self.threads.items()
        for state, began in (*threads, *((state, start) for state in self.starts)):
            following = state[character]
            if following.found is not None:
                for accept in following.found.before:
                    report(accept, began, self.end)
                for accept in following.found.after:
                    report(accept, began, end)
                if following.found.core is None:
                    continue
                following = following.found.core
            moved.setdefault(following, began)
        self.threads = moved
        self.thin_out(automaton)
        self.starts = (automaton.after[character],)
        self.end = end

    def thin_out(self, automaton: Automaton) -> None:
        """Keep no more threads than necessary."""
        if len(self.threads) > self.most_threads:
            self.threads = automaton.without_repetition(self.threads)
            self.most_threads = max(FEW_THREADS, 2 * len(self.threads))

    def join(self, other: Self) -> None:
        """Go on as either of two."""
        for state, began in other.threads.items():
            self.threads[state] = min(began, self.threads.get(state, began))
        self.threads = dict(sorted(self.threads.items(), key=lambda thread: thread[1]))
        self.starts = tuple(dict.fromkeys((*self.starts, *other.starts)))

    def again(self, automaton: Automaton) -> None:
        """Go on with states of the automaton's new generation."""
        self.threads = {automaton.again(state): began for state, began in reversed(self.threads.items())}
        self.threads = dict(sorted(self.threads.items(), key=lambda thread: thread[1]))
        self.starts = tuple(automaton.again(state) for state in self.starts)

    def earliest_held(self, default: int) -> int:
        """Return where the first match begins that would change the text."""
        for state, began in self.threads.items():
            if state.holds:
                return min(began, default)
        return default


class Escape:
    """A backslash, or several, and what may become an escape with it."""

    def __init__(self, reading: Reading, start: int) -> None:
        """Begin before the backslash at `start`."""
        self.start = start
        self.before = reading.copy()
        self.is_open = True
        self._run = 1
        self._digits: str | None = None
        self._high = ""
        """First half of a pair that stands for one character, and whether its second half has begun."""

    def take(self, character: str) -> str | None:
        """Take the next character; return what the escape stands for with it; `is_open` tells whether more may come."""
        if self._digits is not None:
            return self._take_digit(character)
        if character == "\\":
            self._run += 1
            self.is_open = self._run <= LONGEST_BACKSLASH_RUN
            return None if self._high else "\\"
        if self._run and character == "u":
            self._digits = ""
            return None
        self.is_open = False
        return ESCAPES.get(character) if self._run and not self._high else None

    def _take_digit(self, character: str) -> str | None:
        if character not in _HEX_DIGITS:
            self.is_open = False
            return None
        self._digits = f"{self._digits}{character}"
        if len(self._digits) < 4:
            return None
        unit = chr(int(self._digits, 16))
        self._digits = None
        if not self._high and "\ud800" <= unit < "\udc00":
            self._high, self._run = unit, 0
            return None
        self.is_open = False
        pair = (self._high + unit).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return fold(pair)
