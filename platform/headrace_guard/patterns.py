"""Regular expressions that can be judged while the text arrives: the syntax of `re`, without what needs backtracking.

Python's own parser reads them; its tree becomes a nondeterministic automaton, which `automaton` runs in linear time
whatever the pattern. Lazy repeats count as greedy ones: the longest match is taken. `^` and `$` are the borders of
lines.
"""

import re
import warnings
from collections.abc import Iterable
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from msgspec import Struct

from headrace_guard.errors import PatternError
from headrace_guard.nfa import Assertion, CharSet, Check, Consume, Fork, Nfa
from headrace_guard.normalisation import fold

__all__ = ["MOST_NODES", "PatternCompiler", "PatternError", "characters_of"]

_Item = tuple[Any, Any]
"""Of the parser's tree: a code, and what belongs to it."""
_Items = Iterable[_Item]

MOST_NODES = 2_000
"""Of one pattern, its repeats written out."""
LONGEST_PATTERN = 10_000
WIDEST_FOLDED_RANGE = 0x800
"""Wider ranges in brackets are taken as they are written, without folding each of their characters."""

_ASSERTIONS = {
    codes.AT_BEGINNING: Assertion.LINE_START,
    codes.AT_BEGINNING_STRING: Assertion.TEXT_START,
    codes.AT_BOUNDARY: Assertion.BOUNDARY,
    codes.AT_NON_BOUNDARY: Assertion.NO_BOUNDARY,
    codes.AT_END: Assertion.LINE_END,
    codes.AT_END_STRING: Assertion.TEXT_END,
}
_CATEGORIES = {
    codes.CATEGORY_DIGIT: ("digit", True),
    codes.CATEGORY_NOT_DIGIT: ("digit", False),
    codes.CATEGORY_SPACE: ("space", True),
    codes.CATEGORY_NOT_SPACE: ("space", False),
    codes.CATEGORY_WORD: ("word", True),
    codes.CATEGORY_NOT_WORD: ("word", False),
}
_REFUSED = {
    codes.GROUPREF: "refers back to a group; write out what it may repeat",
    codes.GROUPREF_EXISTS: "depends on a group; write its cases as alternatives",
    codes.ASSERT: r"looks ahead or behind; use \b, ^ or $, or make what it looks at a part of the match",
    codes.ASSERT_NOT: r"looks ahead or behind; use \b, ^ or $, or make what it looks at a part of the match",
    codes.ATOMIC_GROUP: "has an atomic group; use a plain group",
    codes.POSSESSIVE_REPEAT: "has a possessive repeat; use a plain one",
}


class _Flags(Struct, frozen=True):
    ignores_case: bool
    dot_takes_newlines: bool

    def changed(self, added: int, removed: int) -> "_Flags":
        return _Flags(
            (self.ignores_case or bool(added & re.IGNORECASE)) and not removed & re.IGNORECASE,
            (self.dot_takes_newlines or bool(added & re.DOTALL)) and not removed & re.DOTALL,
        )


class PatternCompiler:
    """Adds patterns to an automaton."""

    def __init__(self, nfa: Nfa) -> None:
        """Compile into it."""
        self._nfa = nfa
        self._pattern = ""
        self._most_nodes = 0

    def add(self, pattern: str, end: int, *, case_sensitive: bool = False) -> int:
        """Compile a pattern that goes on at `end`; return the node where it begins.

        Raises:
            PatternError: it is not a pattern, or one that cannot be judged.
        """
        self._pattern = pattern
        self._most_nodes = len(self._nfa.nodes) + MOST_NODES
        if len(pattern) > LONGEST_PATTERN:
            raise self._error(f"is longer than {LONGEST_PATTERN} characters; use a word list")
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = _parser.parse(pattern, 0)
            flags = _Flags(ignores_case=not case_sensitive, dot_takes_newlines=False).changed(tree.state.flags, 0)
            start = self._sequence(tree, end, flags)
        except re.error as error:
            raise self._error(f"is not a regular expression: {error}") from error
        except (RecursionError, OverflowError) as error:
            raise self._error("is nested too deeply or repeats too often; simplify it") from error
        if self._nfa.matches_nothing(start):
            raise self._error("matches the empty text; let it require a character (+ in place of *)")
        return start

    def _error(self, problem: str) -> PatternError:
        shown = self._pattern if len(self._pattern) <= 80 else self._pattern[:77] + "..."
        return PatternError(f"{shown!r} {problem}.")

    def _add(self, node: Consume | Fork | Check) -> int:
        if len(self._nfa.nodes) >= self._most_nodes:
            raise self._error(f"needs more than {MOST_NODES} states; shorten its repeats, or use a word list")
        return self._nfa.add(node)

    def _sequence(self, items: _Items, end: int, flags: _Flags) -> int:
        for item in reversed(list(items)):
            end = self._item(item, end, flags)
        return end

    def _item(self, item: _Item, end: int, flags: _Flags) -> int:  # noqa: PLR0911 -- one line per kind of item
        code, argument = item
        match code:
            case codes.LITERAL:
                return self._literal(chr(argument), end, flags)
            case codes.NOT_LITERAL:
                return self._class([(codes.NEGATE, None), (codes.LITERAL, argument)], end, flags)
            case codes.IN:
                return self._class(argument, end, flags)
            case codes.ANY:
                excluded = frozenset[str]() if flags.dot_takes_newlines else frozenset("\n")
                return self._add(Consume(CharSet(excluded, is_negated=True), end))
            case codes.BRANCH:
                return self._add(Fork([self._sequence(branch, end, flags) for branch in argument[1]]))
            case codes.SUBPATTERN:
                _, added, removed, items = argument
                return self._sequence(items, end, flags.changed(added, removed))
            case codes.MAX_REPEAT | codes.MIN_REPEAT:
                return self._repeat(argument, end, flags)
            case codes.AT if argument in _ASSERTIONS:
                return self._add(Check(_ASSERTIONS[argument], end))
            case _:
                raise self._error(_REFUSED.get(code, f"uses {code}, which is not supported"))

    def _literal(self, character: str, end: int, flags: _Flags) -> int:
        return self._any_of(_folded(character, flags), end, flags)

    def _any_of(self, texts: set[str], end: int, flags: _Flags, rest: CharSet | None = None) -> int:
        """Take one of some folded texts, most of which are one character, or one of `rest`."""
        single = frozenset(text for text in texts if len(text) == 1)
        starts = []
        if rest is not None:
            starts.append(self._add(Consume(rest, end)))
        elif single:
            starts.append(self._add(Consume(CharSet(single, ignores_case=flags.ignores_case), end)))
        for text in sorted(texts - single):
            following = end
            for character in reversed(text):
                accepted = CharSet(frozenset(character), ignores_case=flags.ignores_case)
                following = self._add(Consume(accepted, following))
            starts.append(following)
        return starts[0] if len(starts) == 1 else self._add(Fork(starts))

    def _class(self, items: list[_Item], end: int, flags: _Flags) -> int:
        is_negated = items[0][0] is codes.NEGATE
        texts: set[str] = set()
        ranges: list[tuple[int, int]] = []
        categories: list[tuple[str, bool]] = []
        for code, argument in items[is_negated:]:
            if code is codes.LITERAL:
                texts |= _folded(chr(argument), flags)
            elif code is codes.CATEGORY and argument in _CATEGORIES:
                categories.append(_CATEGORIES[argument])
            elif code is codes.RANGE:
                low, high = argument
                if high < 0x80 or high - low > WIDEST_FOLDED_RANGE:
                    ranges.append((low, high))
                else:
                    texts.update(*(_folded(chr(number), flags) for number in range(low, high + 1)))
            else:
                raise self._error(f"uses {code} in brackets, which is not supported")
        single = frozenset(text for text in texts if len(text) == 1)
        accepted = CharSet(single, tuple(ranges), tuple(categories), is_negated, flags.ignores_case)
        # What folds to several characters is another way of a class, but cannot be taken out of one.
        return self._any_of(set() if is_negated else texts - {""}, end, flags, accepted)

    def _repeat(self, repeat: tuple[int, int, _Items], end: int, flags: _Flags) -> int:
        least, most, items = repeat
        if most is codes.MAXREPEAT:
            fork = Fork([])
            end, after = self._add(fork), end
            fork.following = [self._sequence(items, end, flags), after]
        else:
            after = end
            for _ in range(most - least):
                # Each further one may be left out, and with it all that would come after it.
                end = self._add(Fork([self._sequence(items, end, flags), after]))
        for _ in range(least):
            before, end = end, self._sequence(items, end, flags)
            if end == before:
                break  # nothing is repeated, however often
        return end


def _folded(character: str, flags: _Flags) -> set[str]:
    # Look-alikes are not the same in both cases (small Cyrillic ve is no b), so each case is folded on its own.
    variants = {character, character.lower(), character.upper()} if flags.ignores_case else {character}
    return {fold(variant) for variant in variants}


def characters_of(expression: str) -> CharSet:
    """Return what a class in brackets means.

    Raises:
        PatternError: it is not one class.
    """
    nfa = Nfa()
    start = PatternCompiler(nfa).add(expression, nfa.add(Fork([])), case_sensitive=True)
    node = nfa.nodes[start]
    if not isinstance(node, Consume):
        raise PatternError(f"{expression!r} is not one class of characters.")
    return node.accepted
