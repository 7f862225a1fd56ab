"""What was found and may still become longer."""

from collections.abc import Iterable

from msgspec import Struct

from headrace_guard.automaton import State
from headrace_guard.kept_text import KeptText
from headrace_guard.nfa import Accept


class Match(Struct):
    """The longest match yet of a target at one place."""

    accept: Accept
    began: int
    """Where its thread began; `start` lies behind it where that is too far back."""
    start: int
    end: int
    text: str | None = None
    """Set where the text is not kept any longer."""


class Matches:
    """Of each target those that lie in no other one."""

    def __init__(self, text: KeptText, longest_text: int) -> None:
        """Find what was matched in `text`; keep so many characters of it at most."""
        self._text = text
        self._longest_text = longest_text
        self._open: dict[tuple[int, int], Match] = {}
        self._widest: dict[int, Match] = {}
        """Of each target the one that was noted last: what is found next most likely lies in it."""
        self._last: dict[int, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, accept: Accept, began: int, start: int, end: int) -> None:
        """Note a match; an older one of the same thread becomes longer."""
        last_start, last_end = self._last.get(accept.target, (0, 0))
        if last_start <= start and end <= last_end:
            return
        key = accept.target, began
        match = self._open.get(key)
        if match is None:
            widest = self._widest.get(accept.target)
            if widest is not None and widest.start <= start and end <= widest.end:
                return
            match = self._open[key] = Match(accept, began, start, end)
        elif end > match.end:
            match.accept, match.end, match.text = accept, end, None
        self._widest[accept.target] = match

    def take(self, threads: Iterable[tuple[State, int]]) -> list[tuple[Match, str]]:
        """Return those that no thread can make longer or part of a longer one, each with its text."""
        earliest: dict[int, int] = {}
        for state, began in threads:
            for target in state.targets:
                earliest[target] = min(began, earliest.get(target, began))
        ready = []
        for (target, began), match in list(self._open.items()):
            if earliest.get(target, began + 1) > began:
                ready.append(match)
                del self._open[target, began]
        taken = []
        for match in sorted(ready, key=lambda match: (match.start, -match.end)):
            last_start, last_end = self._last.get(match.accept.target, (0, 0))
            if not (last_start <= match.start and match.end <= last_end):
                self._last[match.accept.target] = match.start, match.end
                taken.append((match, self.text_of(match)))
        return sorted(taken, key=lambda one: (one[0].end, one[0].start, one[0].accept.target))

    def freeze(self) -> None:
        """Make ready for the text to be forgotten."""
        for match in self._open.values():
            match.text = self.text_of(match)

    def text_of(self, match: Match) -> str:
        """Return what was found; of a long one its end."""
        if match.text is not None:
            return match.text
        return self._text.between(max(match.start, match.end - self._longest_text), match.end)
