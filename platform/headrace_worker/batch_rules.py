"""The two rules of the dynamic batch, as pure functions of what was seen since they were asked last."""

from collections.abc import Sequence

from msgspec import Struct

CLASSIC_HIGH, CLASSIC_LOW = 0.8, 0.3
GROWTH = 8
"""By objectives a batch grows by one for each so many, one at least."""
EASY = 0.8
"""Below this share of the goal for the time per token there is room for a larger batch."""
MOST_CUT = 0.5
"""No decision makes a batch smaller than this share of it: what one long prompt did may be over already."""
QUANTILE = 0.9


class BatchBounds(Struct, frozen=True):
    """Between what a limit moves, and the goals of the rule by objectives."""

    least: int
    most: int
    tpot_goal_seconds: float
    ttft_goal_seconds: float

    def clamp(self, limit: int) -> int:
        """Return the nearest limit that is allowed."""
        return max(min(self.least, self.most), min(limit, self.most))


class BatchReading(Struct, frozen=True):
    """What was seen of the engine and of its answers since the last decision."""

    load: float
    """Share of the KV cache in use, 0 to 1."""
    num_streams: int
    """That run."""
    tpot_seconds: Sequence[float] = ()
    """One value for each stream that got tokens."""
    ttft_seconds: Sequence[float] = ()
    """One for each first token, from admission."""


def classic(limit: int, reading: BatchReading, bounds: BatchBounds) -> int:
    """Return the limit by load alone: a full engine halves it, an idle one doubles it."""
    if reading.load > CLASSIC_HIGH:
        return bounds.clamp(limit // 2)
    return bounds.clamp(limit * 2 if reading.load < CLASSIC_LOW else limit)


def by_objectives(limit: int, reading: BatchReading, bounds: BatchBounds) -> int:
    """Return the limit by the goals: too slow a decode cuts it in proportion, late first tokens let it grow.

    It grows only while it is what keeps streams out, and while the decode has room; tokens that come too slowly
    count more than first tokens that come too late, for a larger batch makes both worse.
    """
    tpot, ttft = quantile(reading.tpot_seconds), quantile(reading.ttft_seconds)
    if tpot > bounds.tpot_goal_seconds:
        # What decodes is what makes it slow, however high the limit above it is.
        serving = max(1, min(limit, reading.num_streams))
        return bounds.clamp(int(serving * max(MOST_CUT, bounds.tpot_goal_seconds / tpot)))
    is_full = reading.num_streams >= limit
    if is_full and (tpot < EASY * bounds.tpot_goal_seconds or ttft > bounds.ttft_goal_seconds):
        return bounds.clamp(limit + max(1, limit // GROWTH))
    return bounds.clamp(limit)


def quantile(values: Sequence[float]) -> float:
    """Return the value that nine of ten do not exceed; 0.0 of none."""
    return sorted(values)[int(QUANTILE * (len(values) - 1))] if values else 0.0
