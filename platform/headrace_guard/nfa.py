"""Nondeterministic automata over folded characters: what patterns and word lists are compiled to."""

from collections.abc import Callable, Iterable
from enum import Enum, auto

from msgspec import Struct

from headrace_guard.literals import WordList
from headrace_guard.normalisation import EDGE, JOINED, NEWLINE, WORD, is_letter, is_word

CATEGORIES = {"digit": str.isdigit, "space": str.isspace, "word": is_letter}


class CharSet(Struct, frozen=True):
    """Some folded characters."""

    characters: frozenset[str] = frozenset()
    ranges: tuple[tuple[int, int], ...] = ()
    categories: tuple[tuple[str, bool], ...] = ()
    """Names of CATEGORIES, each with whether it is meant or what is outside of it."""
    is_negated: bool = False
    ignores_case: bool = False

    def __contains__(self, character: str) -> bool:
        variants = {character, character.lower(), character.upper()} if self.ignores_case else {character}
        return any(map(self._lists, variants)) != self.is_negated

    def _lists(self, character: str) -> bool:
        if character in self.characters:
            return True
        if any(CATEGORIES[name](character) == is_meant for name, is_meant in self.categories):
            return True
        return len(character) == 1 and any(low <= ord(character) <= high for low, high in self.ranges)


class Assertion(Enum):
    """What a place between two characters must be; decided by the contexts before and after it."""

    BOUNDARY = auto()
    NO_BOUNDARY = auto()
    NOT_INSIDE_WORD = auto()
    LINE_START = auto()
    LINE_END = auto()
    TEXT_START = auto()
    TEXT_END = auto()
    NOT_AFTER = auto()
    NOT_BEFORE = auto()


class Consume(Struct, frozen=True):
    """Takes one character."""

    accepted: CharSet
    following: int


class Fork(Struct):
    """Goes on at several places, taking nothing."""

    following: list[int]


class Check(Struct, frozen=True):
    """Goes on where the place is right, taking nothing."""

    assertion: Assertion
    following: int
    contexts: int = 0
    """Of NOT_AFTER and NOT_BEFORE: contexts that must not be."""

    def holds(self, before: int, after: int) -> bool:  # noqa: PLR0911 -- one line per assertion
        """Decide."""
        match self.assertion:
            case Assertion.BOUNDARY:
                return (before ^ after) & WORD != 0
            case Assertion.NO_BOUNDARY:
                return (before ^ after) & WORD == 0
            case Assertion.NOT_INSIDE_WORD:
                return before & after & JOINED == 0
            case Assertion.LINE_START:
                return before & (NEWLINE | EDGE) != 0
            case Assertion.LINE_END:
                return after & (NEWLINE | EDGE) != 0
            case Assertion.TEXT_START:
                return before & EDGE != 0
            case Assertion.TEXT_END:
                return after & EDGE != 0
            case Assertion.NOT_AFTER:
                return before & self.contexts == 0
            case Assertion.NOT_BEFORE:
                return after & self.contexts == 0


class Accept(Struct, frozen=True):
    """Something of a target has been found."""

    target: int
    finding: str
    is_valid: Callable[[str], bool] | None = None
    """Decides about what has the shape, folded."""


class Words(Struct, frozen=True):
    """The beginning of a word list."""

    words: WordList
    target: int
    whole_words: bool


Node = Consume | Fork | Check | Accept | Words


class Nfa:
    """Nodes by number; they are made from the end to the beginning."""

    def __init__(self) -> None:
        """Start with no node."""
        self.nodes: list[Node] = []
        self.targets: list[int] = []
        """Of each node: whose it is."""
        self.starts: list[int] = []
        self._target = 0
        self._context_sets: dict[CharSet, int] = {}
        self._closures: dict[int, tuple[int, ...]] = {}

    def begin_target(self, target: int) -> None:
        """Say whose the next nodes are."""
        self._target = target

    def add(self, node: Node) -> int:
        """Return its number."""
        self.nodes.append(node)
        self.targets.append(self._target)
        return len(self.nodes) - 1

    def add_words(self, words: WordList, *, whole_words: bool) -> None:
        """Let a word list begin anywhere."""
        root = self.add(Words(words, self._target, whole_words))
        self.starts.append(self.add(Check(Assertion.NOT_INSIDE_WORD, root)) if whole_words else root)

    def context_bit(self, characters: CharSet) -> int:
        """Return the bit of `contexts` that says that a character is one of these."""
        return self._context_sets.setdefault(characters, 2 * JOINED << len(self._context_sets))

    def contexts(self, character: str) -> int:
        """Return all that assertions ask about a character."""
        bits = NEWLINE if character == "\n" else 0
        if is_word(character):
            bits |= WORD if character == "_" else WORD | JOINED
        for characters, bit in self._context_sets.items():
            if character in characters:
                bits |= bit
        return bits

    def closure(self, node: int) -> tuple[int, ...]:
        """Return what is reached from a node without taking or checking anything: no forks are among it."""
        known = self._closures.get(node)
        if known is None:
            known = self._closures[node] = tuple(self._reach([node], through_checks=False))
        return known

    def matches_nothing(self, start: int) -> bool:
        """Whether the empty text can be a match, wherever that is."""
        return any(isinstance(self.nodes[node], Accept) for node in self._reach([start], through_checks=True))

    def _reach(self, waiting: list[int], *, through_checks: bool) -> Iterable[int]:
        seen: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            node = self.nodes[number]
            if isinstance(node, Fork):
                waiting.extend(reversed(node.following))
            elif isinstance(node, Check) and through_checks:
                waiting.append(node.following)
            else:
                yield number
