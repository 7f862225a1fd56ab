"""What a worker says of prefixes that it computed ahead of any request; the control plane reads it."""

from enum import StrEnum

from msgspec import Struct


class PrefillOutcome(StrEnum):
    """What became of a prefill."""

    DONE = "done"
    CANCELLED = "cancelled"
    """By who had asked for it, or by a newer one under the same id."""
    EXPIRED = "expired"
    """Nobody had time for it before it expired."""
    FULL = "full"
    """Too many wait already, of its tenant or at this worker."""
    DUPLICATE = "duplicate"
    """The same one waits already."""
    REFUSED = "refused"
    """The engine does not take it."""
    LOST = "lost"
    """The engine has ended."""


class PrefillReport(Struct, frozen=True, omit_defaults=True):
    """One prefill at one worker."""

    outcome: PrefillOutcome
    tokens: int
    """Length of the prefix."""
    cached_tokens: int
    """How many of them were in the engine's cache already."""
    computed_tokens: int
    seconds: float
    """In which they were computed."""
    at: float
    """Unix seconds, UTC."""
