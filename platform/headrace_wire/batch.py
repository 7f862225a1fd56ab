"""How many streams a worker serves at once: who decides it, and what each rule says."""

from enum import StrEnum

from msgspec import Struct


class BatchControl(StrEnum):
    """What moves a worker's batch limit between the deployment's smallest and largest batch."""

    OFF = "off"
    """Nothing: the largest always."""
    SHADOW = "shadow"
    """Nothing yet; what both rules would do is shown."""
    CLASSIC = "classic"
    """The engine's load: over 0.8 halves the batch, below 0.3 doubles it."""
    OBJECTIVES = "objectives"
    """The goals for the time per output token and for the first token."""


class BatchReport(Struct, frozen=True, array_like=True):
    """What a worker's batch limit is, and what it would be by each rule; 0 for a rule that is not followed."""

    limit: int
    classic: int = 0
    objectives: int = 0
