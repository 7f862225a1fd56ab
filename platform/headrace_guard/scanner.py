"""Light rules over text as it arrives: finds, masks, blocks, and holds back only what can still become a match."""

from collections.abc import Sequence

from msgspec import Struct

from headrace_wire.guard_policy import Action, LightRule


class BoundRule(Struct, frozen=True):
    """A rule as it is to be applied."""

    rule: LightRule
    policy: int
    """Index of its policy among those that apply."""
    is_shadow: bool = False
    """Find and report, as `action` says it would act, but let the text pass."""


class Hit(Struct, frozen=True):
    """Something that was found."""

    bound: BoundRule
    action: Action
    """Of the rule, or of the kind of personal data."""
    finding: str
    """The word list's word, the kind of personal data, "length"."""
    start: int
    """Offset of its first character in the text as it came (code points)."""
    end: int
    text: str
    """What was found, as it came."""


class Scanner:
    """Compiled rules; immutable, shared by all streams that they apply to."""

    def __init__(self, rules: Sequence[BoundRule]) -> None:
        """Compile.

        Raises:
            PatternError: a pattern that cannot be judged; the message is for who wrote it.
        """
        raise NotImplementedError

    def open(self) -> "TextGuard":
        """Return a guard for one text."""
        raise NotImplementedError


class TextGuard:
    """One text on its way. What it releases depends on the text alone, not on how it is cut into pieces."""

    hits: list[Hit]
    """What was found and not taken away yet by the reader of this list, in order of `end`."""
    block: Hit | None
    """What ended the text; nothing is released any more. What came before it is."""

    def push(self, text: str) -> str:
        """Take the next piece; return what may go out now: masked where it must be."""
        raise NotImplementedError

    def flush(self) -> str:
        """Return the rest, at the text's end."""
        raise NotImplementedError

    @property
    def held(self) -> int:
        """Characters held back."""
        raise NotImplementedError
