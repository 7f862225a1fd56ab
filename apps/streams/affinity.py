"""Prefix affinity, the gateway's part: what a prompt begins with, and when it is no longer left to one worker.

Redis decides to whom a waiting stream is left (`lua/_prefixes.lua`), and wakes only that worker. When the time is over
and nobody has taken it, its gateway offers it to all. Should that gateway be gone, the others find it with their next
claim, two seconds later at most.
"""

import asyncio
import time
from collections import deque

import structlog
from redis.exceptions import RedisError

from apps.streams.fleet_view import FleetView
from apps.streams.waiting_room import Waiting, WaitingRoom
from headrace_wire.messages import GenerateRequest
from headrace_wire.prefix_hashes import conversation_text, prefix_hashes, text_hashes
from headrace_wire.prefix_index import MAX_BLOCKS
from headrace_wire.request_queue import RequestQueue

log = structlog.get_logger(__name__)

PREFER_SECONDS = 0.04
"""How long a stream is left to the worker that holds its prompt's beginning, where no other time is set."""


class Affinity:
    """Belongs to one event loop."""

    def __init__(
        self, queue: RequestQueue, fleet: FleetView, waiting_room: WaitingRoom, *, seconds: float = PREFER_SECONDS
    ) -> None:
        """`seconds`: how long a stream is left to one worker; 0 leaves none."""
        self._queue = queue
        self._fleet = fleet
        self._waiting_room = waiting_room
        self.seconds = seconds
        self._left: deque[tuple[float, Waiting]] = deque()
        """By the end of their time."""
        self._changed = asyncio.Event()

    def prefix(self, request: GenerateRequest) -> list[bytes]:
        """Return the hashes of a prompt's blocks, or of its text's; none where there is no choice of workers."""
        if not self.seconds or not (request.prompt_ids or request.conversation):
            return []
        caching = sum(worker.cache_tokens > 0 for worker in self._fleet.workers(request.deployment))
        if caching < 2:
            return []
        if not request.prompt_ids:  # its worker makes the ids
            return text_hashes(request.cache_salt, request.deployment, conversation_text(request.conversation))
        return prefix_hashes(request.cache_salt, request.deployment, request.prompt_ids)[:MAX_BLOCKS]

    def leave(self, waiting: Waiting) -> None:
        """Offer a stream to all workers when its time is over, if it waits still."""
        self._left.append((time.monotonic() + self.seconds, waiting))
        self._changed.set()

    async def run(self) -> None:
        """Offer until cancelled."""
        while True:
            self._changed.clear()
            if not self._left:
                await self._changed.wait()
                continue
            await asyncio.sleep(self._left[0][0] - time.monotonic())
            if stream_ids := self._due(time.monotonic()):
                try:
                    await self._queue.offer(stream_ids)
                except RedisError as error:
                    log.warning("streams_not_offered", error=str(error))

    def _due(self, now: float) -> list[str]:
        """Return the streams whose time is over, those that are taken already left out."""
        due = []
        while self._left and self._left[0][0] <= now:
            waiting = self._left.popleft()[1]
            if waiting in self._waiting_room:
                due.append(waiting.stream_id)
        return due
