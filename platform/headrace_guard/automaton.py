"""Runs an `Nfa` as a deterministic automaton whose states are made when a text first needs them.

A state does not know where a match began: whoever runs it keeps threads, each a state and the offset of its beginning.
Assertions look at one character on either side, so a state keeps the context before it, and what is found at a place
that an assertion guards becomes certain with the next character (`Found.before`).
"""

from msgspec import Struct

from headrace_guard.nfa import Accept, Check, Consume, Nfa, Words
from headrace_guard.normalisation import EDGE, JOINED

MOST_KEPT = 100_000
"""Places of states and steps between them, some 100 bytes each; then all are forgotten, and made as texts need them."""
MOST_PIECES = 20_000
"""Pieces of text that are known to pass, some 150 bytes each; then all are forgotten, and known again as they come."""

Item = int | tuple[int, int, int, int] | tuple[int, int]
"""A node; a position in a word list (its node, first word, word after the last, depth); a whole word (node, index)."""


class Found(Struct, frozen=True):
    """What a step has found."""

    before: tuple[Accept, ...]
    """Ends before the character that was taken."""
    after: tuple[Accept, ...]
    """Ends with it."""
    core: "State | None"
    """Where the thread goes on; None where it ends."""


class State(dict[str, "State"]):
    """Where threads are; as a dictionary: where the next character leads."""

    __slots__ = ("_automaton", "before", "found", "holds", "places", "targets")

    def __init__(self, automaton: "Automaton", items: tuple[Item, ...], before: int, found: Found | None) -> None:
        """Be what the automaton makes."""
        super().__init__()
        self._automaton = automaton
        self.places = items
        self.before = before
        """Context of the character before."""
        self.found = found
        """None on the path that must be fast: nothing was found, and the thread goes on here."""
        self.targets = frozenset(automaton.target_of(item) for item in items)
        """What can still be found."""
        self.holds = not self.targets.isdisjoint(automaton.holding)
        """Whether any of it changes the text."""

    # Two states are the same only where they are one: the automaton makes each once.
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def __missing__(self, character: str) -> "State":
        following = self[character] = self._automaton.step(self, character)
        return following

    def at_end(self) -> list[Accept]:
        """Return what is found where the text ends here."""
        return self._automaton.resolve(self, EDGE)[1]


class _Starts(dict[str, State]):
    """By the character before: the state in which a match begins."""

    def __init__(self, automaton: "Automaton") -> None:
        super().__init__()
        self._automaton = automaton

    def __missing__(self, character: str) -> State:
        state = self[character] = self._automaton.start(self._automaton.nfa.contexts(character))
        return state


class Quiet(dict[str, "Quiet"]):
    """Where no match has begun and nothing waits; as a dictionary: where pieces lead that change nothing of that.

    What comes of a piece depends here on nothing else but the character before it, which `starts` knows. A model's
    tokens come again and again, and hardly one of them means anything to a rule: what was read once need not be again.
    """

    __slots__ = ("starts",)

    def __init__(self, starts: State) -> None:
        """Be empty; a match begins in `starts`."""
        super().__init__()
        self.starts = starts


class Automaton:
    """The states, shared by all texts."""

    def __init__(self, nfa: Nfa, holding: frozenset[int]) -> None:
        """Run `nfa`; `holding` are the targets that change the text."""
        self.nfa = nfa
        self.holding = holding
        self.forget()

    def forget(self) -> None:
        """Make all states again; threads must go through `again`."""
        self.generation = object()
        self._states: dict[tuple[frozenset[Item], int, tuple[Accept, ...], tuple[Accept, ...]], State] = {}
        self._kept = 0
        self._quiet: dict[State, Quiet] = {}
        self._pieces = 0
        self.after = _Starts(self)
        """By the character before: the state in which a match begins."""
        self.at_beginning = self.start(EDGE)
        """The state in which a match begins at the text's beginning."""
        self.dead = self._intern(set(), 0, (), ())
        """Leads nowhere; the start state where nothing can begin leads here."""

    @property
    def is_full(self) -> bool:
        """Whether it is time to forget."""
        return self._kept > MOST_KEPT

    def quiet(self, starts: State) -> Quiet:
        """Return the quiet place from which a match begins in `starts`."""
        found = self._quiet.get(starts)
        if found is None:
            found = self._quiet[starts] = Quiet(starts)
        return found

    def know(self, before: Quiet, piece: str, after: Quiet) -> None:
        """Note that a piece has passed as it was, and led from one quiet place to another one."""
        if self._pieces >= MOST_PIECES:
            self._pieces = 0
            for quiet in list(self._quiet.values()):
                quiet.clear()
        before[piece] = after
        self._pieces += 1

    def again(self, state: State) -> State:
        """Return the state that now stands for one of another generation."""
        return self._intern(set(state.places), state.before, (), ())

    def without_repetition(self, threads: dict[State, int]) -> dict[State, int]:
        """Take from younger threads what an older one has too, which finds the same there, and more.

        So there are no more threads than there are places, whatever the pattern. `threads` begin with the oldest.
        """
        seen: set[tuple[Item, int]] = set()
        kept: dict[State, int] = {}
        for state, began in threads.items():
            places = {place for place in state.places if (place, state.before) not in seen}
            seen.update((place, state.before) for place in places)
            if places:
                kept.setdefault(self._intern(places, state.before, (), ()), began)
        return kept

    def start(self, before: int) -> State:
        """Return the state in which a match can begin after a character of this context."""
        items: set[Item] = set()
        for start in self.nfa.starts:
            self._enter(start, items, [])
        return self._intern(items, before, (), ())

    def step(self, state: State, character: str) -> State:
        """Return where a folded character leads."""
        self._kept += 1
        context = self.nfa.contexts(character)
        consuming, before = self.resolve(state, context)
        items: set[Item] = set()
        after: list[Accept] = []
        for item in consuming:
            if isinstance(item, tuple):
                self._step_words(item, character, items, after)
                continue
            node = self.nfa.nodes[item]
            if isinstance(node, Consume) and character in node.accepted:
                self._enter(node.following, items, after)
        return self._intern(items, context, tuple(dict.fromkeys(before)), tuple(dict.fromkeys(after)))

    def resolve(self, state: State, after: int) -> tuple[list[Item], list[Accept]]:
        """Decide assertions by the context that follows; return what goes on and what is found here."""
        consuming: list[Item] = []
        accepts: list[Accept] = []
        waiting = list(state.places)
        seen: set[Item] = set()
        while waiting:
            item = waiting.pop(0)
            if item in seen:
                continue
            seen.add(item)
            if isinstance(item, tuple):
                if len(item) == 2:
                    accepts += self._whole_word(item, state.before & after)
                else:
                    consuming.append(item)
                continue
            node = self.nfa.nodes[item]
            if isinstance(node, Check):
                if node.holds(state.before, after):
                    waiting += self.nfa.closure(node.following)
            elif isinstance(node, Accept):
                accepts.append(node)
            elif isinstance(node, Words):
                consuming.append((item, *node.words.root))
            else:
                consuming.append(item)
        return consuming, accepts

    def target_of(self, item: Item) -> int:
        """Return whose an item is."""
        return self.nfa.targets[item[0] if isinstance(item, tuple) else item]

    def _whole_word(self, item: tuple[int, int], inside: int) -> list[Accept]:
        node = self.nfa.nodes[item[0]]
        if not isinstance(node, Words) or inside & JOINED:
            return []
        return [Accept(node.target, node.words.original(item[1]))]

    def _step_words(
        self, item: tuple[int, int, int, int] | tuple[int, int], character: str, items: set[Item], after: list[Accept]
    ) -> None:
        node = self.nfa.nodes[item[0]]
        if not isinstance(node, Words) or len(item) != 4:
            return
        following, complete = node.words.step(item[1:], character)
        items.update((item[0], *position) for position in following)
        if complete is None:
            return
        if node.whole_words:
            items.add((item[0], complete))
        else:
            after.append(Accept(node.target, node.words.original(complete)))

    def _enter(self, number: int, items: set[Item], after: list[Accept]) -> None:
        for reached in self.nfa.closure(number):
            node = self.nfa.nodes[reached]
            if isinstance(node, Accept):
                after.append(node)
            else:
                items.add(reached)

    def _intern(self, items: set[Item], context: int, before: tuple[Accept, ...], after: tuple[Accept, ...]) -> State:
        asks = any(
            len(item) == 2 if isinstance(item, tuple) else isinstance(self.nfa.nodes[item], Check) for item in items
        )
        key = frozenset(items), context if asks else 0, before, after
        state = self._states.get(key)
        if state is None:
            found = None
            if before or after or not items:
                core = self._intern(items, context, (), ()) if items else None
                found = Found(before, after, core)
            state = State(self, tuple(items), key[1], found)
            self._states[key] = state
            self._kept += 1 + len(items)
        return state
