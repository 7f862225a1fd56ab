"""A client's way through connections until it has its answer."""

import asyncio
import itertools
import time
from collections.abc import Iterator

from tests.faults.readers import CutError, Hop, Leg, Reader, Transport
from tests.faults.transports import BROKEN, TRANSPORTS

RECONNECT_SECONDS = (0.0, 0.02, 0.1, 0.25)
"""Before the next connection, by how many in a row brought nothing."""


async def travel(reader: Reader, route: Iterator[Hop], *, seconds: float) -> Reader:
    """Follows `route` until the answer has ended; after `seconds` the reader counts as hung."""
    try:
        async with asyncio.timeout(seconds):
            await _travel(reader, route)
    except TimeoutError:
        reader.is_hung = True
    return reader


async def _travel(reader: Reader, route: Iterator[Hop]) -> None:
    failures = 0
    for hop in route:
        leg = Leg(hop, time.monotonic(), reader.seq)
        reader.legs.append(leg)
        try:
            await TRANSPORTS[hop.transport](reader, hop)
            leg.why = "ended"
        except CutError:
            leg.why = "cut"
        except BROKEN as error:
            leg.why = f"{type(error).__name__}: {error}"
        leg.closed_at, leg.closed_after = time.monotonic(), reader.seq
        if reader.is_over:
            return
        if leg.why == "cut":
            await asyncio.sleep(hop.pause_seconds)
            continue
        failures = 0 if leg.closed_after > leg.opened_after else failures + 1
        await asyncio.sleep(RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)])


def alternating(*hops: Hop) -> Iterator[Hop]:
    """Returns a route that takes these hops, then turns between transports and two gateways without a cut."""
    last = hops[-1]
    rest = [Hop(Transport.EVENTS, 1 - last.gateway), Hop(Transport.WEBSOCKET, last.gateway)]
    return itertools.chain(hops, itertools.cycle(rest))
