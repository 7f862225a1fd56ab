"""Rules for these tests."""

from typing import Any

from headrace_guard.scanner import BoundRule
from headrace_wire.guard_policy import Action, LengthRule, LiteralRule, PersonalDataKind, PersonalDataRule, RegexRule

EVERY_KIND = tuple(PersonalDataKind)


def words(
    *listed: str, action: Action = Action.MASK, name: str = "words", is_shadow: bool = False, **more: Any
) -> BoundRule:
    """Return a word list."""
    return BoundRule(LiteralRule(key=name, name=name, words=listed, action=action, **more), 0, is_shadow)


def patterns(
    *listed: str, action: Action = Action.MASK, name: str = "patterns", is_shadow: bool = False, **more: Any
) -> BoundRule:
    """Return regular expressions."""
    return BoundRule(RegexRule(key=name, name=name, patterns=listed, action=action, **more), 0, is_shadow)


def personal_data(*kinds: PersonalDataKind, action: Action = Action.MASK, **more: Any) -> BoundRule:
    """Return kinds of personal data, all with one action."""
    return BoundRule(PersonalDataRule(key="personal", kinds=dict.fromkeys(kinds, action), **more), 0)


def length(most: int, action: Action = Action.BLOCK, *, is_shadow: bool = False) -> BoundRule:
    """Return a limit of characters."""
    return BoundRule(LengthRule(key="length", max_characters=most, action=action), 0, is_shadow)
