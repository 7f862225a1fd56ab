"""Which rules apply where several policies do. All of them; where two disagree, the stricter one wins."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from headrace_guard.scanner import BoundRule, Scanner
from headrace_wire.guard_policy import (
    Action,
    AnyRule,
    Direction,
    FailureMode,
    GuardPolicy,
    InputTrip,
    LightRule,
    PolicyMode,
    WindowRule,
)


class BoundWindowRule(Struct, frozen=True):
    """A window rule as it is to be applied."""

    rule: WindowRule
    policy: int
    """Index of its policy among those that apply."""
    is_shadow: bool = False

    @property
    def blocks(self) -> bool:
        """Whether what it finds ends the text. Windows are not masked: that rule blocks."""
        return not self.is_shadow and self.rule.action is not Action.FLAG


class Guard:
    """Policies, compiled together; immutable, shared by all streams that they apply to."""

    def __init__(self, policies: Sequence[GuardPolicy]) -> None:
        """Compile.

        Raises:
            PatternError: a pattern that cannot be judged.
        """
        self.policies = tuple(policies)
        self.input_scanner = self._scanner(Direction.INPUT)
        self.output_scanner = self._scanner(Direction.OUTPUT)
        self.input_rules = self._window_rules(Direction.INPUT)
        self.output_rules = self._window_rules(Direction.OUTPUT)
        cutting = [policies[bound.policy] for bound in self.output_rules]
        self.chunk_size = max((policy.chunk_size for policy in cutting), default=0)
        self.context_size = max((policy.context_size for policy in cutting), default=0)
        holding = [policies[bound.policy] for bound in self.output_rules if bound.blocks]
        self.blocks_windows = bool(holding)
        """Whether what a window rule finds changes anything; else nobody waits for it."""
        self.holds_windows = any(not policy.stream_first for policy in holding)
        """Whether text waits for its window; where all that block are `stream_first`, or nothing does, it is out."""

    @property
    def names(self) -> list[str]:
        """Return the policies' names, in order."""
        return [policy.name for policy in self.policies]

    def replacement(self, policy: int, rule: AnyRule) -> str:
        """Return what stands in the place of a text that this rule blocks."""
        return rule.replacement or self.policies[policy].replacement

    def is_closed(self, bound: BoundWindowRule) -> bool:
        """Whether a failure of this rule's judge ends the stream."""
        return not bound.is_shadow and self.policies[bound.policy].failure_mode is FailureMode.CLOSED

    def refuses_input(self, policy: int) -> bool:
        """Whether a request that this policy blocks is an error, and not answered with the replacement."""
        return self.policies[policy].on_input_trip is InputTrip.REFUSE

    def _scanner(self, direction: Direction) -> Scanner | None:
        bound = [
            BoundRule(rule, policy, is_shadow)
            for rule, policy, is_shadow in self._rules(direction)
            if isinstance(rule, LightRule)
        ]
        return Scanner(bound) if bound else None

    def _window_rules(self, direction: Direction) -> tuple[BoundWindowRule, ...]:
        return tuple(
            BoundWindowRule(rule, policy, is_shadow)
            for rule, policy, is_shadow in self._rules(direction)
            if isinstance(rule, WindowRule)
        )

    def _rules(self, direction: Direction) -> Iterator[tuple[AnyRule, int, bool]]:
        for index, policy in enumerate(self.policies):
            for rule in policy.rules:
                if rule.applies_to in (direction, Direction.BOTH):
                    yield rule, index, policy.mode is PolicyMode.SHADOW
