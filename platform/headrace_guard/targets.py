"""What a scanner looks for: rules, compiled into one automaton."""

from collections.abc import Sequence

from msgspec import Struct

from headrace_guard.automaton import Automaton
from headrace_guard.errors import PatternError
from headrace_guard.literals import WordList
from headrace_guard.masking import placeholder
from headrace_guard.nfa import Accept, Assertion, Check, Nfa
from headrace_guard.patterns import PatternCompiler, characters_of
from headrace_guard.personal_data import Shape, shapes_of
from headrace_wire.guard_policy import Action, LengthRule, LightRule, LiteralRule, PersonalDataRule, RegexRule


class BoundRule(Struct, frozen=True):
    """A rule as it is to be applied."""

    rule: LightRule
    policy: int
    """Index of its policy among those that apply."""
    is_shadow: bool = False
    """Find and report, as `action` says it would act, but let the text pass."""


class Target(Struct, frozen=True):
    """Something that is looked for, and what happens when it is found."""

    bound: BoundRule
    action: Action
    mask: str

    @property
    def changes_text(self) -> bool:
        """Whether the text waits for it."""
        return self.action is not Action.FLAG and not self.bound.is_shadow


class CompiledRules:
    """All rules in one automaton, which finds them in one pass; rules about length stand apart."""

    def __init__(self, rules: Sequence[BoundRule]) -> None:
        """Compile.

        Raises:
            PatternError: a pattern that cannot be judged.
        """
        self.targets: list[Target] = []
        self.noticed_lengths: list[tuple[BoundRule, int]] = []
        """Lengths that are only told."""
        self.cutting_length: tuple[int, BoundRule, str] | None = None
        """The shortest one that ends the text, and what then stands at its end."""
        self._nfa = Nfa()
        self._patterns = PatternCompiler(self._nfa)
        for bound in rules:
            self._add(bound)
        holding = frozenset(index for index, target in enumerate(self.targets) if target.changes_text)
        self.automaton = Automaton(self._nfa, holding)

    def _add(self, bound: BoundRule) -> None:
        match bound.rule:
            case LiteralRule(words=words, whole_words=whole_words):
                if words:
                    self._begin(Target(bound, bound.rule.action, bound.rule.mask or placeholder(bound.rule.name)))
                    self._nfa.add_words(WordList(words), whole_words=whole_words)
            case RegexRule(patterns=patterns, case_sensitive=case_sensitive):
                target = self._begin(Target(bound, bound.rule.action, bound.rule.mask or placeholder(bound.rule.name)))
                for pattern in patterns:
                    end = self._nfa.add(Accept(target, pattern))
                    self._nfa.starts.append(self._patterns.add(pattern, end, case_sensitive=case_sensitive))
            case PersonalDataRule(kinds=kinds, phone_regions=regions):
                for kind, action in kinds.items():
                    target = self._begin(Target(bound, action, bound.rule.mask or placeholder(kind)))
                    for shape in shapes_of(kind, regions):
                        self._add_shape(shape, self._nfa.add(Accept(target, kind.value, shape.is_valid)))
            case LengthRule(max_characters=most):
                self._add_length(bound, most)

    def _add_length(self, bound: BoundRule, most: int) -> None:
        if most < 1:
            raise PatternError("A length of less than one character lets nothing pass; allow more.")
        action = bound.rule.action
        if action is Action.FLAG or bound.is_shadow:
            self.noticed_lengths.append((bound, most))
            return
        known = self.cutting_length
        if known is None or (most, action is not Action.BLOCK) < (known[0], known[1].rule.action is not Action.BLOCK):
            self.cutting_length = most, bound, bound.rule.mask or placeholder("length")

    def _begin(self, target: Target) -> int:
        self.targets.append(target)
        self._nfa.begin_target(len(self.targets) - 1)
        return len(self.targets) - 1

    def _add_shape(self, shape: Shape, end: int) -> None:
        nfa = self._nfa
        if shape.not_before:
            bit = nfa.context_bit(characters_of(shape.not_before))
            end = nfa.add(Check(Assertion.NOT_BEFORE, end, bit))
        start = self._patterns.add(shape.pattern, end, case_sensitive=shape.case_sensitive)
        if shape.not_after:
            bit = nfa.context_bit(characters_of(shape.not_after))
            start = nfa.add(Check(Assertion.NOT_AFTER, start, bit))
        nfa.starts.append(start)
