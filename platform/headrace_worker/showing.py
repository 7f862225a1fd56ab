"""What the queue's records say of streams while they run: who is held, and that an attempt came forward."""

import asyncio
import logging
from collections.abc import Sequence

from redis.exceptions import RedisError

from headrace_wire.messages import StreamState
from headrace_wire.request_queue import RequestQueue
from headrace_worker.generation import Generation
from headrace_worker.holding import SLOW_CONSUMER

log = logging.getLogger(__name__)


class Showing:
    """Tells the queue, and does not wait: nothing that is logged depends on it."""

    def __init__(self, queue: RequestQueue, tasks: asyncio.TaskGroup) -> None:
        self._queue = queue
        self._tasks = tasks

    def states(self, states: Sequence[tuple[Generation, StreamState]]) -> None:
        """Show which streams are held, and which run again."""
        self._tasks.create_task(self._mark(states))

    def progress(self, generation: Generation) -> None:
        """Show that an attempt gave tokens: it does not count as one that failed."""
        self._tasks.create_task(self._progress(generation))

    async def _mark(self, states: Sequence[tuple[Generation, StreamState]]) -> None:
        marks = [
            (generation.stream_id, generation.epoch, state, SLOW_CONSUMER if state is StreamState.HELD else "")
            for generation, state in states
        ]
        try:
            await self._queue.mark(marks)
        except RedisError as error:
            log.warning("cannot show who is held: %s", error)

    async def _progress(self, generation: Generation) -> None:
        try:
            await self._queue.progress([(generation.stream_id, generation.epoch)])
        except RedisError as error:
            log.warning("an attempt may count that came forward: %s", error)
