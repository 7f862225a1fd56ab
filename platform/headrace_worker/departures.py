"""Which streams leave this worker before their end, and when: a drain, an order, a slow reader, an engine that is gone.

How they leave is `handover`'s.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from headrace_worker.failures import DRAINED, ENGINE_LOST
from headrace_worker.generation import Generation
from headrace_worker.handover import Handover
from headrace_worker.healing import Health
from headrace_worker.holding import Holds
from headrace_worker.places import Places

log = logging.getLogger(__name__)


class Departures:
    """Of one worker's live streams."""

    def __init__(
        self,
        live: Mapping[str, Generation],
        handover: Handover,
        tasks: asyncio.TaskGroup,
        *,
        holds: Holds,
        places: Places,
        health: Health,
    ) -> None:
        self._live = live
        self._handover = handover
        self._tasks = tasks
        self._holds = holds
        self._places = places
        self._health = health

    def drain(self) -> None:
        """Take nothing more; give up what is held, now and from now on; the rest may go on."""
        self._places.is_closed = True
        self._holds.drain()

    def resume(self) -> None:
        """Take streams again."""
        self._holds.resume()
        self._places.is_closed = False
        self._places.changed.set()

    async def hand_over(self) -> None:
        """Give every stream back, to be continued by another worker; what has begun is done, come what may."""
        leaving = self._handover.requeue(list(self._live.values()), DRAINED, saving=True)
        await asyncio.shield(self._tasks.create_task(leaving))

    def migrate(self, stream_ids: Sequence[str]) -> None:
        """Give these streams to other workers; those that cannot be continued elsewhere stay."""
        found = [generation for stream_id in stream_ids if (generation := self._live.get(stream_id)) is not None]
        for generation in found:
            if not generation.may_continue:
                log.warning("not to be continued elsewhere, and kept stream_id=%s", generation.stream_id)
        moving = [generation for generation in found if generation.may_continue]
        self._tasks.create_task(self._handover.requeue(moving, DRAINED, saving=True, elsewhere=True))

    def suspend(self, generation: Generation, reason: str) -> None:
        """Give a held stream up until its reader comes on."""
        self._tasks.create_task(self._handover.suspend(generation, reason))

    def engine_lost(self) -> None:
        """Give back all streams that an engine had which is gone, or given up.

        It may be one of them that ends engines, one without a token most likely. Where there is only one of these it is
        blamed, else they go first, and into the next engine one at a time. None is where the engine lives and is given
        up: then its streams are not what ails it.
        """
        live = list(self._live.values())
        unmoved = [generation for generation in live if generation.is_unmoved]
        moved = [generation for generation in live if generation not in unmoved]
        blamed = unmoved if len(unmoved) == 1 and not self._health.is_sick else []
        self._tasks.create_task(self._handover.requeue(unmoved + moved, ENGINE_LOST, blamed=blamed))
