"""Hundreds of clients at a time while processes die, freeze, restart and drain, all drawn by one seed."""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from redis.asyncio import Redis

from tests.faults.golden import Golden, undisturbed
from tests.faults.journey import travel
from tests.faults.leaks import Leaks, leaks_left
from tests.faults.readers import Hop, Reader, Transport
from tests.faults.stack import FaultStack
from tests.faults.strikes import Fault, Strike, Striker
from tests.faults.verdicts import Judge, Outcome

LEAK_SECONDS = 60.0
"""Looked at until then; who takes over from a gateway that died while it adopted waits 15 s and a lease for it."""


class StormPlan(Struct, frozen=True):
    """What happens. The same seed draws the same faults and routes; when each meets which stream is up to clocks."""

    seed: int
    streams: int
    at_once: int
    tokens: int
    weights: Mapping[Fault, int]
    """How often each fault is drawn."""
    calm_seconds: tuple[float, float] = (1.0, 2.5)
    """Between two faults."""
    cut_share: float = 0.3
    """Of connections, how many are cut by the client."""
    prompts: int = 16
    patience_seconds: float = 60.0
    """After which a stream counts as hung."""


class StormOutcome(Struct, frozen=True):
    """What happened."""

    plan: StormPlan
    outcomes: Sequence[Outcome]
    strikes: Sequence[Strike]
    leaks: Leaks


async def run_storm(stack: FaultStack, plan: StormPlan) -> StormOutcome:
    """Runs the undisturbed answers first, then the storm, then looks at what is left of it."""
    prompts = [f"Storm {plan.seed}, question {number}." for number in range(plan.prompts)]
    goldens = await asyncio.gather(*[undisturbed(stack, prompt, max_tokens=plan.tokens) for prompt in prompts])
    striker, over = Striker(stack, random.Random(plan.seed), plan.weights), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(striker.run(plan.calm_seconds, over))
        readers = await _read_all(stack, plan, goldens)
        over.set()
    async with Redis.from_url(stack.redis_url) as redis:
        # First of all what is left: the end of a stream that Redis has forgotten may still be on its way into its log.
        leaks, judge = await leaks_left(redis, seconds=LEAK_SECONDS), Judge(redis)
        outcomes = [await judge.judge(reader, golden) for reader, golden in readers]
        return StormOutcome(plan, outcomes, striker.strikes, leaks)


async def _read_all(stack: FaultStack, plan: StormPlan, goldens: Sequence[Golden]) -> list[tuple[Reader, Golden]]:
    places = asyncio.Semaphore(plan.at_once)
    readers: list[tuple[Reader, Golden]] = []

    async def read(reader: Reader, number: int) -> None:
        try:
            route = _wander(reader, random.Random(f"{plan.seed}/{number}"), plan)
            await travel(reader, route, seconds=plan.patience_seconds)
        finally:
            places.release()

    async with asyncio.TaskGroup() as reading:
        for number in range(plan.streams):
            await places.acquire()
            golden = goldens[number % len(goldens)]
            reader = Reader(stack.ports, stack.api_key, stack.model, golden.prompt, golden.tokens)
            reader.may_start_anew = Fault.ROLL_BACK_REDIS in plan.weights
            readers.append((reader, golden))
            reading.create_task(read(reader, number))
    return readers


def _wander(reader: Reader, rng: random.Random, plan: StormPlan) -> Iterator[Hop]:
    """Yields connections over any gateway and transport, some of them cut."""
    start = rng.choice([Transport.WEBSOCKET, Transport.WEBSOCKET, Transport.CHAT])
    after = [Transport.WEBSOCKET, Transport.EVENTS, *([Transport.CHAT] if start is Transport.CHAT else [])]
    while True:
        transport = start if reader.stream_id is None else rng.choice(after)
        cut_at = reader.seq + rng.randrange(plan.tokens) if rng.random() < plan.cut_share else None
        yield Hop(transport, rng.randrange(len(reader.ports)), cut_at, rng.choice([0.0, 0.0, rng.uniform(0.0, 1.0)]))
