"""Word lists as tries that are never built: a position in a sorted list stands for a node.

20,000 words cost a sorted list and no nodes; only those paths that texts take are computed, and kept by the automaton.
"""

from bisect import bisect_left
from collections.abc import Iterable

from headrace_guard.errors import PatternError
from headrace_guard.normalisation import fold

Position = tuple[int, int, int]
LAST_CODE_POINT = 0x10FFFF


class WordList:
    """Folded words in lower case; a run of spaces in them stands for any run of spaces."""

    def __init__(self, words: Iterable[str]) -> None:
        """Fold and sort.

        Raises:
            PatternError: a word of which nothing is left.
        """
        found: dict[str, str] = {}
        for word in words:
            # Look-alikes are not the same in both cases (small Cyrillic ve is no b), so each case is a word of its own.
            for variant in {word, word.lower(), word.upper(), word.title()}:
                folded = " ".join(fold(variant).split()).lower()
                if not folded:
                    raise PatternError(f"{word!r} has no visible character; take it out of the list.")
                found.setdefault(folded, word)
        self._words = sorted(found)
        self._originals = [found[word] for word in self._words]

    def __len__(self) -> int:
        return len(self._words)

    def original(self, index: int) -> str:
        """Return a word as it was written."""
        return self._originals[index]

    @property
    def root(self) -> Position:
        """Where every word begins: first word, word after the last, characters read."""
        return 0, len(self._words), 0

    def step(self, position: Position, character: str) -> tuple[list[Position], int | None]:
        """Return the positions after a folded character, and the index of a word that is complete with it."""
        low, high, depth = position
        wanted = " " if character in " \n" else character.lower()
        read = self._words[low][:depth]
        following: list[Position] = []
        if wanted == " " and read.endswith(" "):
            following.append(position)
        longer = read + wanted
        first = bisect_left(self._words, longer, low, high)
        end = bisect_left(self._words, read + chr(min(ord(wanted[-1]) + 1, LAST_CODE_POINT)), first, high)
        if first == end:
            return following, None
        is_complete = self._words[first] == longer
        if end - first > is_complete:
            following.append((first, end, depth + len(wanted)))
        return following, first if is_complete else None
