"""How a worker comes to have no streams: on orders from the fleet, and at its end. Both are the same drain."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from redis.exceptions import RedisError

from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.messages import Drain
from headrace_worker.streams import Streams

log = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0
"""How long what is handed over, and the last entries, may take to reach Redis."""


class Draining:
    """Follows the newest order of the fleet until the worker ends. Belongs to one event loop."""

    def __init__(self, streams: Streams, *, announce: Callable[[], None], wake: Callable[[], Awaitable[None]]) -> None:
        """`announce` tells the fleet of a new state; `wake` has whoever waits for work look whether it still may."""
        self._streams = streams
        self._announce = announce
        self._wake = wake
        self._changed = asyncio.Event()
        self.order: Drain | None = None
        """What is being carried out, or was."""
        self.until = 0.0
        """When what is left is handed over, Unix seconds."""

    def begin(self, order: Drain) -> None:
        """Take nothing more from now on; a newer order takes the place of the one before."""
        log.info(
            "draining, streams: %d, deadline: %.0f s, leaving: %s (%s)",
            *(len(self._streams), order.deadline_seconds, order.leave, order.reason),
        )
        self.order, self.until = order, time.time() + order.deadline_seconds
        self._streams.departures.drain()
        self._announce()
        self._changed.set()

    def resume(self) -> None:
        """Take streams again."""
        if self.order is None:
            return
        log.info("drain ended, taking streams again")
        self.order = None
        self._streams.departures.resume()
        self._announce()
        self._changed.set()

    async def run(self) -> None:
        """Carry orders out until cancelled."""
        while True:
            self._changed.clear()
            order = self.order
            work = asyncio.create_task(self._obey(order)) if order is not None else None
            try:
                await self._changed.wait()
            finally:
                if work is not None:
                    await cancel_and_wait(work)

    async def _obey(self, order: Drain) -> None:
        try:
            await self._wake()
        except RedisError as error:
            log.warning("whoever waits for work was not told of the drain: %s", error)
        if not order.leave:  # then it is the worker's end, which waits for itself
            await self.finish(order.deadline_seconds, asyncio.Event())
            self._announce()

    async def finish(self, seconds: float, hurry: asyncio.Event) -> None:
        """Wait until every stream has its end in the log, at most so long or until `hurry`; then give back the rest."""
        publisher = self._streams.publisher
        try:
            async with asyncio.timeout(seconds):
                await _first_of(publisher.wait_empty(), hurry.wait())
        except TimeoutError:
            pass
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                while len(self._streams):  # a claim that was under way may have brought some more
                    log.warning("drain deadline passed, streams handed over: %d", len(self._streams))
                    await self._streams.departures.hand_over()
                    await publisher.wait_empty()
                await publisher.wait_empty()
        except TimeoutError:
            log.warning("ends could not be written, redis is away: %d", len(publisher.owned()))


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
