"""The same fault at every token: clients spread over the whole answer when it strikes, round after round."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from tests.faults.golden import Golden
from tests.faults.journey import alternating, travel
from tests.faults.readers import Hop, Reader, Transport
from tests.faults.stack import FaultStack
from tests.faults.verdicts import Judge, Outcome

PATIENCE_SECONDS = 60.0
MAX_ROUNDS = 16
LEADS = (-0.5, 0.0, 0.5, 1.0, 1.5)
"""Steps by which streams are ahead of their aim from the second round on: clocks and queues shift them."""

Route = Callable[[int], Iterator[Hop]]
"""The way of a client that is to be hit at a given token."""


class Sweep:
    """Streams of one answer on one stack, and which of its positions have been hit."""

    def __init__(self, stack: FaultStack, golden: Golden, *, ttft_seconds: float, tpot_seconds: float) -> None:
        self.outcomes: list[Outcome] = []
        self.hit: set[int] = set()
        self.missing: set[int] = set()
        """Positions that should have been hit."""
        self._stack = stack
        self._golden = golden
        self._ttft_seconds = ttft_seconds
        self._tpot_seconds = tpot_seconds

    async def cut_clients(self, first: Transport) -> None:
        """Cuts a client at each position, then another one at what the first round jumped over."""
        for aims in self._rounds(self._golden.told):

            def route(index: int) -> Iterator[Hop]:
                return alternating(*_opening(first, index % 2, cut_at=index))

            async with self._spread(aims, route):
                pass
            self.hit |= {leg.closed_after for o in self._latest for leg in o.reader.legs if leg.why == "cut"}

    async def kill_workers(self, first: Transport) -> None:
        """Kills one worker after the other, until a stream was taken over at each position."""
        for number, aims in enumerate(self._rounds(range(self._golden.tokens))):

            def route(index: int) -> Iterator[Hop]:
                return alternating(*_opening(first, index % 2))

            victim = self._stack.workers[number % len(self._stack.workers)]
            async with self._spread(aims, route):
                victim.kill()
                victim.start()
            await victim.ready()
            self.hit |= {owner.after for outcome in self._latest for owner in outcome.takeovers}

    async def kill_gateways(self, first: Transport) -> None:
        """Kills one gateway after the other, each with all streams on it, until it has hit each position."""
        for number, aims in enumerate(self._rounds(self._golden.told - {self._golden.tokens})):
            gateway = number % len(self._stack.gateways)

            def route(_: int, gateway: int = gateway) -> Iterator[Hop]:
                return alternating(*_opening(first, gateway))

            victim = self._stack.gateways[gateway]
            async with self._spread(aims, route):
                at = time.monotonic()
                victim.kill()
                victim.start()
            await victim.ready()
            legs = [leg for outcome in self._latest for leg in outcome.reader.legs if leg.hop.gateway == gateway]
            self.hit |= {leg.closed_after for leg in legs if leg.opened_at < at < leg.closed_at and leg.why != "cut"}

    # ---- one round

    def _rounds(self, positions: Collection[int]) -> Iterator[list[tuple[int, float]]]:
        """Yields positions to aim at, each with a lead in steps, until all were hit."""
        self.missing = set(positions)
        yield [(index, 0.0) for index in positions]
        for _ in range(MAX_ROUNDS):
            self.missing -= self.hit
            if not self.missing:
                return
            yield [(index, lead) for index in self.missing for lead in LEADS]

    @asynccontextmanager
    async def _spread(self, aims: Sequence[tuple[int, float]], route: Route) -> AsyncIterator[None]:
        """Inside, there is a stream at each aim, as near as clocks allow; afterwards, all have been judged."""
        ages = [(self._ttft_seconds + (at - 0.5 + lead) * self._tpot_seconds, at) for at, lead in aims]
        begin = time.monotonic() + max(ages)[0]
        readers: list[Reader] = []
        async with asyncio.TaskGroup() as reading:
            for age, index in sorted(ages, reverse=True):
                await asyncio.sleep(begin - age - time.monotonic())
                readers.append(self._reader())
                reading.create_task(travel(readers[-1], route(index), seconds=PATIENCE_SECONDS))
            await asyncio.sleep(begin - time.monotonic())
            yield
        async with Redis.from_url(self._stack.redis_url) as redis:
            judge = Judge(redis)
            self._latest = [await judge.judge(reader, self._golden) for reader in readers]
        self.outcomes += self._latest

    def _reader(self) -> Reader:
        stack = self._stack
        return Reader(stack.ports, stack.api_key, stack.model, self._golden.prompt, self._golden.tokens)


def _opening(first: Transport, gateway: int, *, cut_at: int | None = None) -> list[Hop]:
    """Returns the first connections of a client; one that follows events starts its stream over a WebSocket."""
    if first is Transport.EVENTS:
        return [Hop(Transport.WEBSOCKET, gateway, cut_at=0), Hop(first, gateway, cut_at=cut_at)]
    return [Hop(first, gateway, cut_at=cut_at)]
