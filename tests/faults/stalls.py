"""How long clients waited for their next text because of a fault."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from tests.faults.strikes import Fault, Strike
from tests.faults.verdicts import Outcome

IN_FLIGHT_SECONDS = 0.5
"""What was on its way when the fault struck may still arrive; the wait begins with the last of it."""


class Stalls(Struct, frozen=True):
    """Of all streams that one kind of fault met, in seconds."""

    fault: Fault
    strikes: int
    streams: int
    p50: float
    p95: float
    highest: float
    struck_again: int
    """Streams that another fault met before they went on: their waits belong to both and are left out."""


def stalls_of(outcomes: Sequence[Outcome], strikes: Sequence[Strike]) -> list[Stalls]:
    """Returns one row per kind of fault that happened."""
    rows = []
    for fault in Fault:
        of_kind = [strike for strike in strikes if strike.fault is fault]
        met = [(outcome, gap) for strike in of_kind for outcome in outcomes if (gap := stall_of(outcome, strike))]
        waits = sorted(b - a for outcome, (a, b) in met if _strikes_within(outcome, strikes, a, b) <= 1)
        if of_kind:
            p50, p95, highest = (_quantile(waits, share) for share in (0.5, 0.95, 1.0))
            rows.append(Stalls(fault, len(of_kind), len(waits), p50, p95, highest, len(met) - len(waits)))
    return rows


def stall_of(outcome: Outcome, strike: Strike) -> tuple[float, float] | None:
    """Returns the longest gap around a strike that met the stream while its text was coming, else None."""
    arrivals = outcome.reader.arrivals
    if len(arrivals) < 2 or not arrivals[0] < strike.at < arrivals[-1] or not _is_met(outcome, strike):
        return None
    around = ((a, b) for a, b in pairwise(arrivals) if a <= strike.at + IN_FLIGHT_SECONDS and b >= strike.at)
    return max(around, key=lambda gap: gap[1] - gap[0])


def _strikes_within(outcome: Outcome, strikes: Sequence[Strike], begin: float, end: float) -> int:
    return sum(begin - IN_FLIGHT_SECONDS < strike.at < end and _is_met(outcome, strike) for strike in strikes)


def _is_met(outcome: Outcome, strike: Strike) -> bool:
    if strike.gateway is not None:
        legs = outcome.reader.legs
        return any(leg.hop.gateway == strike.gateway and leg.opened_at < strike.at < leg.closed_at for leg in legs)
    if strike.incarnations:
        owners = [owner for owner in outcome.owners if owner.epoch <= strike.at_ms]
        return bool(owners) and owners[-1].incarnation in strike.incarnations
    return True


def _quantile(waits: Sequence[float], share: float) -> float:
    return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0
