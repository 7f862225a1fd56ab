"""How long clients waited for their next text because of a fault."""

from collections.abc import Iterator, Sequence
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


def stalls_of(outcomes: Sequence[Outcome], strikes: Sequence[Strike]) -> list[Stalls]:
    """Returns one row per kind of fault that happened."""
    rows = []
    for fault in Fault:
        of_kind = [strike for strike in strikes if strike.fault is fault]
        waits = sorted(wait for strike in of_kind for outcome in outcomes for wait in _waits(outcome, strike))
        if of_kind:
            rows.append(Stalls(fault, len(of_kind), len(waits), *(_quantile(waits, q) for q in (0.5, 0.95, 1.0))))
    return rows


def _waits(outcome: Outcome, strike: Strike) -> Iterator[float]:
    """Yields the longest gap around the strike, where it met the stream while its text was coming."""
    arrivals = outcome.reader.arrivals
    if len(arrivals) < 2 or not arrivals[0] < strike.at < arrivals[-1] or not _is_met(outcome, strike):
        return
    yield max(b - a for a, b in pairwise(arrivals) if a <= strike.at + IN_FLIGHT_SECONDS and b >= strike.at)


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
