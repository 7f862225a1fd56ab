"""Times that are compared: whole slots of the latency book in which loads were as they are now, filed to the last one.

Nothing is taken after so many seconds: a window is as long as it takes until the gateway has filed enough of it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from redis import Redis

from apps.ops.diagnosis.movements import FEWEST
from headrace_wire import redis_keys
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.store import SLOT_SECONDS, slot_of, totals_read
from headrace_wire.latency.summary import Summary
from tests.support.live_stack import LiveStack
from tests.support.steady_load import SteadyLoad

LOOK_SECONDS = 0.2
SAMPLE_SECONDS = 0.5
SAMPLE = """
from apps.deployments.fleet_mirror import workers_sync
from apps.ops.latency.samples import fleet_sample_take

if fleet_sample_take():
    workers_sync()
"""

Window = tuple[int, int]
"""Unix seconds: slots from the first one up to and without the second."""


@asynccontextmanager
async def sampling(stack: LiveStack) -> AsyncIterator[None]:
    """Samples the fleet as Celery's beat does, which on a busy machine comes too late for times as short as these."""

    async def sample() -> None:
        while True:
            await asyncio.to_thread(stack.run_django, SAMPLE)
            await asyncio.sleep(SAMPLE_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sample())
        yield
        task.cancel()


class BookWindows:
    """Of one installation with one gateway."""

    def __init__(self, stack: LiveStack) -> None:
        self._redis: Redis = Redis.from_url(stack.redis_url)

    def close(self) -> None:
        """Reads no more."""
        self._redis.close()

    def filed(self, deployment: str, window: Window) -> Summary:
        """Returns what the gateway has filed of a deployment."""
        summary, (start, end) = Summary(), window
        for _, packed in totals_read(self._redis, start=start, end=end, deployment=deployment):
            summary.merge_packed(packed)
        return summary

    def slowness(self, deployment: str, window: Window) -> float:
        """Returns what the gateway itself took of a stream then, the mean."""
        book = self.filed(deployment, window)
        own = sum(book.histogram(phase).sum_seconds for phase in (Measure.ADMISSION, Measure.FLUSH))
        return own / max(book.histogram(Measure.TTFT).count, 1)

    async def window(
        self,
        loads: Sequence[SteadyLoad],
        *,
        samples: int = 1,
        timeouts: int = 0,
        during: Callable[[], Awaitable[None]] | None = None,
    ) -> Window:
        """Returns a window in which all of these loads were as they are now.

        It has so many samples of the fleet, `FEWEST` first texts and ends of each load, and so many timeouts of all
        together. `during` is done once it has begun.
        """
        await asyncio.gather(*(load.renewed() for load in loads))
        start = slot_of(time.time()) + SLOT_SECONDS
        await asyncio.sleep(max(0.0, start - time.time()))
        if during is not None:
            await during()
        while True:
            end = await asyncio.to_thread(self._filed_until, start, [load.deployment for load in loads])
            if end > start and await asyncio.to_thread(self._is_enough, loads, (start, end), samples, timeouts):
                return start, end
            await asyncio.sleep(LOOK_SECONDS)

    async def wait_filed(self, load: SteadyLoad, began: int) -> Summary:
        """Returns what the book has of a load that has ended, once all of its streams are filed."""
        while True:
            summary = await asyncio.to_thread(self.filed, load.deployment, (began, slot_of(time.time()) + SLOT_SECONDS))
            if summary.tally(Tally.REQUESTS) >= load.seen.streams:
                return summary
            await asyncio.sleep(LOOK_SECONDS)

    def _filed_until(self, start: int, deployments: Sequence[str]) -> int:
        """Returns the end of the newest slot up to which these are filed: a gateway files its slots in their order."""
        now = slot_of(time.time())
        ends = [now]
        for deployment in deployments:
            slots = [slot for slot, _ in totals_read(self._redis, start=start, end=now, deployment=deployment)]
            ends.append(max(slots, default=start - SLOT_SECONDS) + SLOT_SECONDS)
        return min(ends)

    def _is_enough(self, loads: Sequence[SteadyLoad], window: Window, samples: int, timeouts: int) -> bool:
        slots = range(*window, SLOT_SECONDS)
        if sum(bool(self._redis.exists(redis_keys.fleet_sample_key(slot))) for slot in slots) < samples:
            return False
        books = [self.filed(load.deployment, window) for load in loads]
        enough = all(min(book.tally(Tally.REQUESTS), book.histogram(Measure.TTFT).count) >= FEWEST for book in books)
        return enough and sum(book.tally(Tally.TIMEOUTS) for book in books) >= timeouts
