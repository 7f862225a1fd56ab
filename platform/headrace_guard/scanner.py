"""Light rules over text as it arrives: finds, masks, blocks, and holds back only what can still become a match.

One pass over the folded text runs all rules. Of every place where something begins, the longest match counts, and spans
that overlap are one; for a block the shortest is enough. A match that has gone on for more than `MOST_HELD` characters
is one that has begun that much before its end, so that no pattern can keep a text back.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from headrace_guard.automaton import Quiet, State
from headrace_guard.kept_text import KeptText
from headrace_guard.matches import Match, Matches
from headrace_guard.nfa import Accept
from headrace_guard.normalisation import FOLD, fold_escaped
from headrace_guard.readings import Escape, Reading
from headrace_guard.release import Release
from headrace_guard.targets import BoundRule, CompiledRules
from headrace_wire.guard_policy import Action

__all__ = ["MOST_HELD", "BoundRule", "Hit", "Scan", "Scanner", "TextGuard"]

MOST_HELD = 1_000
"""Characters that are held back at most, and of which a hit's text consists."""
MOST_AT_ONCE = 2_000
"""Characters between two looks at what can be let out, reported and forgotten."""
LONGEST_KNOWN = 32
"""Characters of a piece that is worth being known: one token. What several make together hardly comes again."""


class Hit(Struct, frozen=True):
    """Something that was found."""

    bound: BoundRule
    action: Action
    """Of the rule, or of the kind of personal data."""
    finding: str
    """The word list's word, the pattern, the kind of personal data, "length"."""
    start: int
    """Offset of its first character in the text as it came (code points)."""
    end: int
    text: str
    """What was found, as it came."""


class Scan(Struct, frozen=True):
    """What became of a whole text."""

    text: str
    """Masked; where it was blocked, what comes before that."""
    hits: list[Hit]
    block: Hit | None


class Scanner:
    """Compiled rules; shared by all streams that they apply to."""

    def __init__(self, rules: Sequence[BoundRule]) -> None:
        """Compile.

        Raises:
            PatternError: a pattern that cannot be judged; the message is for who wrote it.
        """
        self._rules = CompiledRules(rules)

    def open(self) -> "TextGuard":
        """Return a guard for one text."""
        return TextGuard(self._rules)

    def scan(self, text: str) -> Scan:
        """Judge a whole text."""
        guard = self.open()
        passed = guard.push(text) + guard.flush()
        return Scan(passed, guard.hits, guard.block)


class TextGuard:
    """One text on its way. What it releases depends on the text alone, not on how it is cut into pieces."""

    def __init__(self, rules: CompiledRules) -> None:
        """Begin."""
        self.hits: list[Hit] = []
        """What was found and not taken away yet by the reader of this list."""
        self.block: Hit | None = None
        """What ended the text; nothing is released any more. What came before it is. It is the last of `hits`, too."""
        self._rules = rules
        self._automaton = rules.automaton
        self._generation = self._automaton.generation
        self._reading = Reading({}, (self._automaton.at_beginning,), 0)
        self._escape: Escape | None = None
        self._quiet: Quiet | None = None
        """Where the text is, as long as it is quiet; what else is kept here may lag behind then, see `_arrive`."""
        self._position = 0
        """Characters taken."""
        self._text = KeptText()
        self._matches = Matches(self._text, MOST_HELD)
        self._release = Release(self._text, [target.mask for target in rules.targets])
        self._trip: Match | None = None
        self._lengths = list(rules.noticed_lengths)
        self._is_over = False

    def push(self, text: str) -> str:
        """Take the next piece; return what may go out now: masked where it must be."""
        quiet = self._quiet
        if quiet is not None and (following := quiet.get(text)) is not None:
            self._quiet = following
            self._position += len(text)
            return text
        return self._read(text)

    def flush(self) -> str:
        """Return the rest, at the text's end."""
        self._arrive()
        return "" if self._is_over else self._finish()

    @property
    def held(self) -> int:
        """Characters held back."""
        if self._is_over or self._quiet is not None:
            return 0
        return max(0, self._position - self._release.released)

    def _read(self, text: str) -> str:
        """Take a piece that is not known to pass, and have it known from now on if it has."""
        before, hits = self._arrive(), len(self.hits)
        if len(text) <= MOST_AT_ONCE:
            released = self._push(text)
        else:
            parts = [self._push(text[at : at + MOST_AT_ONCE]) for at in range(0, len(text), MOST_AT_ONCE)]
            released = "".join(parts)
        self._quiet = after = self._quiet_now()
        has_passed = released == text and len(self.hits) == hits
        if has_passed and before is not None and after is not None and len(text) <= LONGEST_KNOWN:
            self._automaton.know(before, text, after)
        return released

    def _arrive(self) -> Quiet | None:
        """Be where known pieces have led; return that place, or None where it is no quiet one."""
        quiet, self._quiet = self._quiet, None
        if quiet is not None:
            self._reading.starts, self._reading.end = (quiet.starts,), self._position
            self._text.skip_to(self._position)
            self._release.skip_to(self._position)
        return quiet

    def _quiet_now(self) -> Quiet | None:
        """Return the quiet place where the text is; None where something has begun or waits, or a length is counted."""
        reading = self._reading
        if self._is_over or self._lengths or self._rules.cutting_length is not None:
            return None
        if reading.threads or len(reading.starts) != 1 or self._escape is not None or self._matches:
            return None
        return self._automaton.quiet(reading.starts[0]) if self._release.is_idle(self._position) else None

    def _push(self, text: str) -> str:
        if self._is_over or not text:
            return ""
        cut = self._rules.cutting_length
        is_too_long = cut is not None and self._position + len(text) > cut[0]
        if cut is not None and is_too_long:
            text = text[: cut[0] - self._position]
        self._take(text)
        if self._lengths:
            self._notice_lengths(is_too_long=is_too_long)
        if self._trip is not None:
            return self._end_with(self._trip)
        if cut is not None and is_too_long:
            return self._cut(*cut)
        return self._let_out()

    def _take(self, text: str) -> None:
        if self._generation is not self._automaton.generation or self._automaton.is_full:
            self._renew_states()
        self._text.append(text)
        if self._escape is None and len(self._reading.starts) == 1 and text.isascii() and text.isprintable():
            plain, backslash, rest = text.partition("\\")
            if plain:
                self._take_plain(plain)
            text = backslash + rest
        if text and self._trip is None:
            self._take_folding(text)

    def _take_plain(self, text: str) -> None:
        """Take characters that are what they fold to, as fast as it can be done."""
        reading, first = self._reading, self._position
        after = self._automaton.after
        threads, starts = reading.threads, reading.starts[0]
        for index, character in enumerate(text, first):
            beginning = starts[character]
            starts = after[character]
            if (
                not threads
                and beginning.found is not None
                and beginning.found.core is None
                and not beginning.found.after
            ):
                continue
            moved: dict[State, int] = {}
            for state, began in threads.items():
                following = state[character]
                if following.found is None:
                    if following not in moved:
                        moved[following] = began
                else:
                    self._position = index
                    end = index if index > first else reading.end
                    self._follow(following, began, end, index + 1, moved)
            if beginning.found is None:
                moved.setdefault(beginning, index)
            elif beginning is not self._automaton.dead:
                self._position = index
                self._follow(beginning, index, index, index + 1, moved)
            threads = moved
            if len(moved) > reading.most_threads:
                reading.threads = moved
                reading.thin_out(self._automaton)
                threads = reading.threads
            if self._trip is not None:
                break
        reading.threads, reading.starts = threads, (starts,)
        self._position = first + len(text)
        reading.end = self._position

    def _follow(self, state: State, began: int, end_before: int, end_after: int, moved: dict[State, int]) -> None:
        found = state.found
        if found is None:
            return
        for accept in found.before:
            self._found(accept, began, end_before)
        for accept in found.after:
            self._found(accept, began, end_after)
        if found.core is not None:
            moved.setdefault(found.core, began)

    def _take_folding(self, text: str) -> None:
        """Take any characters."""
        for character in text:
            index = self._position
            escape = self._escape
            if escape is None and character == "\\":
                self._escape = Escape(self._reading, index)
            for folded in FOLD[character]:
                self._reading.feed(self._automaton, folded, index, index + 1, self._found)
            if escape is not None:
                self._take_escape(escape, character)
            self._position = index + 1
            if self._trip is not None:
                return

    def _take_escape(self, escape: Escape, character: str) -> None:
        meant = escape.take(character)
        end = self._position + 1
        if meant is not None:
            other = escape.before.copy()
            for folded in meant:
                other.feed(self._automaton, folded, escape.start, end, self._found)
            self._reading.join(other)
            self._release.add_escape(escape.start, end)
        if not escape.is_open:
            # What ends one may begin another: a backslash in the place of a digit.
            self._escape = Escape(self._reading, self._position) if character == "\\" else None

    def _found(self, accept: Accept, began: int, end: int) -> None:
        target = self._rules.targets[accept.target]
        start = max(began, self._position - MOST_HELD)
        if accept.is_valid is not None and not accept.is_valid(fold_escaped(self._text.between(start, end))):
            return
        self._matches.add(accept, began, start, end)
        if not target.changes_text:
            return
        if target.action is Action.MASK:
            self._release.add_mask(start, end, accept.target)
        elif self._trip is None or (start, accept.target) < (self._trip.start, self._trip.accept.target):
            self._trip = Match(accept, began, start, end)

    def _let_out(self) -> str:
        position = self._position
        if not self._automaton.holding:
            limit = position
        else:
            limit = max(self._reading.earliest_held(position), position - MOST_HELD)
            if self._escape is not None:
                before = max(self._escape.before.earliest_held(position), position - MOST_HELD)
                limit = min(limit, before, self._escape.start)
        released = self._release.up_to(limit, position, self._escape.start if self._escape else None)
        self._report()
        return released

    def _report(self) -> None:
        if self._matches:
            for match, text in self._matches.take(self._threads()):
                self.hits.append(self._hit(match, text))
        if not self._matches and not self._reading.threads and self._escape is None:
            self._text.forget(self._release.released)
        elif len(self._text) > 4 * MOST_HELD:
            self._matches.freeze()
            self._text.forget(min(self._release.released, self._position - MOST_HELD))

    def _threads(self) -> Iterator[tuple[State, int]]:
        yield from self._reading.threads.items()
        if self._escape is not None:
            yield from self._escape.before.threads.items()

    def _hit(self, match: Match, text: str) -> Hit:
        target = self._rules.targets[match.accept.target]
        return Hit(target.bound, target.action, match.accept.finding, match.start, match.end, text)

    def _finish(self) -> str:
        for state, began in self._reading.threads.items():
            for accept in state.at_end():
                self._found(accept, began, self._reading.end)
        self._reading.threads, self._escape = {}, None
        if self._trip is not None:
            return self._end_with(self._trip)
        self._is_over = True
        return self._let_out()

    def _end_with(self, trip: Match) -> str:
        limit = trip.start if self._escape is None else min(trip.start, self._escape.start)
        released = self._release.up_to(limit, self._position, None)
        self.block = self._hit(trip, self._text.between(trip.start, trip.end))
        for match, text in self._matches.take(()):
            if match.accept.target != trip.accept.target or match.began != trip.began:
                self.hits.append(self._hit(match, text))
        self.hits.append(self.block)
        self._is_over = True
        return released

    def _cut(self, most: int, bound: BoundRule, mask: str) -> str:
        released = self._finish()
        if self.block is None:
            hit = Hit(bound, bound.rule.action, "length", most, most + 1, "")
            self.hits.append(hit)
            if bound.rule.action is Action.BLOCK:
                self.block = hit
            else:
                released += mask
        return released

    def _notice_lengths(self, *, is_too_long: bool) -> None:
        length = self._position + is_too_long
        for bound, most in list(self._lengths):
            if length > most:
                self._lengths.remove((bound, most))
                self.hits.append(Hit(bound, bound.rule.action, "length", most, most + 1, ""))

    def _renew_states(self) -> None:
        if self._automaton.is_full:
            self._automaton.forget()
        self._generation = self._automaton.generation
        self._reading.again(self._automaton)
        if self._escape is not None:
            self._escape.before.again(self._automaton)
