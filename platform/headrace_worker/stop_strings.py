"""Stop strings over text that arrives in pieces, independent of where the pieces are cut."""

from collections.abc import Sequence


class StopStrings:
    """Finds the stop string that is complete first, and holds back only text that may still become one.

    Of two that end at the same character the longer one counts: less of it reaches the reader.
    """

    __slots__ = ("_held", "_include", "_longest", "_stops")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        self._longest = len(self._stops[0]) if self._stops else 0
        self._include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Return (text to release, the stop string that ended the answer or None). After a match nothing follows."""
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            start, stop = match
            self._held = ""
            return text[: start + len(stop)] if self._include else text[:start], stop
        keep = self._held_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """Return what was held back, at the end of the answer."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, str] | None = None
        for stop in self._stops:  # longest first, so that it wins a tie
            start = text.find(stop)
            if start >= 0 and (best is None or start + len(stop) < best[0] + len(best[1])):
                best = start, stop
        return best

    def _held_length(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0
