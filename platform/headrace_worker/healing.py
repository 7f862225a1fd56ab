"""What a worker does for its own health: it gives up an engine that fails its streams, and after too many waits.

A dead engine, and one that does not answer, is seen by its host. Here is what takes counting. Failed streams are no
proof: one tenant may send nothing but requests that fail by themselves. So they make an engine suspect, and what it
answers its host then (`Warming.answers`) says whether it is sick.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any

from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.messages import Ended, StreamState
from headrace_worker.config import HealingLimits
from headrace_worker.failures import ENGINE_GAVE_UP


class EngineEnd(StrEnum):
    """How an engine came to its end against its worker's will."""

    NOT_STARTED = "not_started"
    DIED = "died"
    """Or did not answer any more."""
    EJECTED = "ejected"
    """It lived, and failed too many of its streams."""


class Health:
    """Of one worker's engines, one after the other. Belongs to one event loop."""

    def __init__(self, limits: HealingLimits) -> None:
        self._limits = limits
        self._failed: deque[bool] = deque(maxlen=limits.error_window)
        """Of the engine's last streams, whether it has failed them."""
        self._suspect = asyncio.Event()
        self.is_sick = False
        """The engine is given up although it lives."""
        self._ends: deque[float] = deque()
        """When engines have ended."""
        self._released = asyncio.Event()
        self._recalled = asyncio.Event()
        self.quarantined_at = 0.0
        """Unix seconds; 0 where no quarantine is."""

    # ---- of the engine that there is

    def begin(self) -> None:
        """Another engine is there, or this one was found well: nothing is held against it."""
        self._failed.clear()
        self._suspect.clear()
        self.is_sick = False

    def ended(self, ended: Ended) -> None:
        """Note the end of a stream, as far as it says something of its engine."""
        if ended.error == ENGINE_GAVE_UP:
            self._fail()
        elif ended.state is StreamState.FINISHED:
            self._failed.append(False)

    def stalled(self, count: int) -> None:
        """Note streams that the engine gave no token in time."""
        for _ in range(count):
            self._fail()

    @property
    def is_suspect(self) -> bool:
        """Whether the engine has failed too many of its streams."""
        return self._suspect.is_set()

    async def wait_suspect(self) -> str:
        """Wait until it has; return how many. Whether it is at fault, an answer of its own must say."""
        await self._suspect.wait()
        return f"{sum(self._failed)} of its last {len(self._failed)} streams were failed by the engine"

    def _fail(self) -> None:
        self._failed.append(True)
        if sum(self._failed) > self._limits.error_share * self._limits.error_window:
            self._suspect.set()

    # ---- of all engines

    def recall(self, deaths: int) -> None:
        """Learn, at the start, how many processes before this one have died; each counts as an engine that ended."""
        if not self._recalled.is_set():
            self._ends.extend([time.monotonic()] * deaths)
            self._recalled.set()

    async def wait_recalled(self) -> None:
        """Wait until that is known."""
        await self._recalled.wait()

    def engine_ended(self) -> None:
        """Note an end that the worker did not want."""
        self._ends.append(time.monotonic())

    @property
    def engine_failures(self) -> int:
        """How many of these ends there were lately, those of processes before this one among them."""
        since = time.monotonic() - self._limits.quarantine_seconds
        while self._ends and self._ends[0] < since:
            self._ends.popleft()
        return len(self._ends)

    @property
    def is_hopeless(self) -> bool:
        """Whether there were so many that another start is left to a person."""
        return 0 < self._limits.quarantine_after <= self.engine_failures

    async def quarantine(self, mended: Coroutine[Any, Any, object]) -> None:
        """Wait until somebody has it released, or for what is `mended`; after it, old ends count no more."""
        self._released.clear()
        self.quarantined_at = time.time()
        waits = [asyncio.create_task(mended), asyncio.create_task(self._released.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(*waits)
            self.quarantined_at = 0.0
            self._ends.clear()

    def release(self) -> None:
        """End a quarantine; without one nothing happens."""
        self._released.set()
