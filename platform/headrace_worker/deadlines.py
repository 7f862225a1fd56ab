"""The engine's deadlines: for each stream the moment at which it must have given the next token."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence

from headrace_worker.generation import Generation


class Deadlines:
    """Wakes at the earliest one, which moves with each token; costs a comparison per token otherwise."""

    def __init__(
        self,
        waiting: Callable[[], Sequence[Generation]],
        passed: Callable[[Sequence[Generation]], Awaitable[None]],
    ) -> None:
        """`waiting` returns who waits for a token; `passed` is awaited with those who waited for too long."""
        self._waiting = waiting
        self._passed = passed
        self._changed = asyncio.Event()
        self.next_check = math.inf
        """The earliest of all deadlines that are known; who has a later one need not call `moved`."""

    def moved(self, generation: Generation) -> None:
        """Note a stream's new deadline; only one that is earlier than all others matters."""
        if generation.deadline < self.next_check:
            self._changed.set()

    async def run(self) -> None:
        """See to deadlines until cancelled."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            late = [generation for generation in self._waiting() if generation.deadline <= now]
            if late:
                await self._passed(late)
            self.next_check = min((generation.deadline for generation in self._waiting()), default=math.inf)
            pause = None if math.isinf(self.next_check) else self.next_check - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
