"""Which durations moved between two times, and how much of the whole that explains."""

from dataclasses import dataclass

from apps.ops.diagnosis.observations import Observation
from headrace_wire.latency.measures import PHASES, Measure

FEWEST = 10
"""Fewer durations than that tell nothing."""
RATIO = 1.25
"""A duration moved when its mean or its p95 grew by that factor, and by `LEAST_SECONDS`."""
LEAST_SECONDS = {Measure.TPOT: 0.001, Measure.GAP: 0.001}
LEAST_OF_PHASE = 0.01
_WHOLES = frozenset({Measure.TTFT, Measure.TOTAL})


@dataclass(frozen=True, slots=True)
class Movement:
    """A duration that grew, in seconds; the share is a phase's of the growth of TTFT, others' of that of the total."""

    measure: Measure
    p95_before: float
    p95: float
    mean_before: float
    mean: float
    share: float
    seconds: float
    """What it adds to a stream's time, in the mean."""

    @property
    def says(self) -> str:
        """For people."""
        name = self.measure.value.upper() if len(self.measure.value) <= 4 else self.measure.value.capitalize()
        return (
            f"{name} p95 {in_words(self.p95_before)} → {in_words(self.p95)},"
            f" mean {in_words(self.mean_before)} → {in_words(self.mean)}"
        )


def movements(now: Observation, before: Observation) -> dict[Measure, Movement]:
    """Returns what grew, by measure; nothing where either time has too little to compare."""
    if min(now.count(Measure.TTFT), before.count(Measure.TTFT)) < FEWEST:
        return {}
    found = {}
    for measure in Measure:
        mean_before, mean = before.mean(measure), now.mean(measure)
        p95_before, p95 = before.quantile(measure, 0.95), now.quantile(measure, 0.95)
        if _grew(measure, mean_before, mean) or _grew(measure, p95_before, p95):
            whole = _growth(Measure.TTFT if measure in PHASES else Measure.TOTAL, now, before)
            seconds = _seconds(measure, now, before)
            share = 1.0 if measure in _WHOLES else min(seconds / whole, 1.0) if whole > 0 else 0.0
            found[measure] = Movement(measure, p95_before, p95, mean_before, mean, share, seconds)
    return found


def in_words(seconds: float) -> str:
    """Returns a duration for people."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _grew(measure: Measure, before: float, now: float) -> bool:
    return now > before * RATIO and now - before > LEAST_SECONDS.get(measure, LEAST_OF_PHASE)


def _seconds(measure: Measure, now: Observation, before: Observation) -> float:
    """Means add up, so that their growth does: what comes after the first token is the total without it."""
    if measure in PHASES or measure in _WHOLES:
        return max(_growth(measure, now, before), 0.0)
    return max(_growth(Measure.TOTAL, now, before) - _growth(Measure.TTFT, now, before), 0.0)


def _growth(measure: Measure, now: Observation, before: Observation) -> float:
    return now.mean(measure) - before.mean(measure)
