"""How many streams one gateway serves: up to the soft limit at once, up to the hard one in line, none beyond it."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from msgspec import Struct

from apps.streams import metrics
from headrace_wire.errors import ServerOverloadedError

DEFAULT_SOFT_LIMIT = 1024
DEFAULT_HARD_LIMIT = 2048
RATE_WINDOW_SECONDS = 30.0
MAX_RETRY_SECONDS = 120.0
NEWS_SECONDS = 1.0
"""How often one who waits is told a new position, at most."""


class QueueNews(Struct, frozen=True):
    """What one who waits in line is told."""

    position: int
    """1 is next."""
    eta_seconds: tuple[float, float] | None
    """Earliest and latest, from the measured rate of endings; None while nothing was measured."""
    reason: str = ""
    """Why the place is a later one than what was told before (`waiting_room.RiseReason`); empty where it is not."""


NO_PLACE = QueueNews(0, None)
"""Of a stream that is not waiting, or of which nothing is known."""

OnWait = Callable[[QueueNews], Awaitable[None]]


class StreamLimit:
    """Counts readers and the streams that they generate; keeps those in line that are over the soft limit."""

    def __init__(self, soft: int = DEFAULT_SOFT_LIMIT, hard: int = DEFAULT_HARD_LIMIT) -> None:
        self.soft = soft
        self.hard = hard
        self.open = 0
        """Readers, those in line included."""
        self.generating = 0
        """Streams that had their turn and whose reader is still here."""
        self._line: deque[asyncio.Future[None]] = deque()
        self._endings: deque[float] = deque(maxlen=1024)

    @property
    def waiting(self) -> int:
        """Streams in line."""
        return len(self._line)

    def enter(self) -> None:
        """Take a reader's place.

        Raises:
            ServerOverloadedError: all are taken.
        """
        if self.open >= self.hard:
            metrics.STREAMS_REFUSED.inc()
            raise ServerOverloadedError(
                f"This gateway serves {self.hard} streams, its limit; try again later.",
                retry_after_seconds=self.retry_after_seconds(),
            )
        self.open += 1

    def leave(self, *, had_turn: bool) -> None:
        """Give a reader's place back, and the turn that its stream had."""
        self.open -= 1
        if had_turn:
            self._endings.append(time.monotonic())
            self.generating -= 1
            self._call_next()

    async def turn(self, on_wait: OnWait | None = None) -> None:
        """Wait for a stream's turn to be admitted; `on_wait` is told the place in line, and when it changes."""
        if self.generating < self.soft and not self._line:
            self.generating += 1
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(called)
        try:
            await self._wait(called, on_wait)
        except BaseException:
            if called in self._line:
                self._line.remove(called)
            elif called.done() and not called.cancelled():
                self.generating -= 1
                self._call_next()
            raise

    def retry_after_seconds(self) -> float:
        """Return when a place may be free: the time that one ending takes at the rate of the last half minute."""
        pace = self._seconds_per_ending()
        return RATE_WINDOW_SECONDS if pace is None else min(MAX_RETRY_SECONDS, max(1.0, pace))

    async def _wait(self, called: "asyncio.Future[None]", on_wait: OnWait | None) -> None:
        told = 0
        while not called.done():
            position = self._line.index(called) + 1
            if on_wait is not None and position != told:
                told = position
                await on_wait(QueueNews(position, self._eta(position)))
            await asyncio.wait({called}, timeout=NEWS_SECONDS)

    def _call_next(self) -> None:
        while self._line and self.generating < self.soft:
            called = self._line.popleft()
            if not called.done():
                self.generating += 1
                called.set_result(None)

    def _eta(self, position: int) -> tuple[float, float] | None:
        pace = self._seconds_per_ending()
        return None if pace is None else (position * pace * 0.5, position * pace * 2.0)

    def _seconds_per_ending(self) -> float | None:
        now = time.monotonic()
        while self._endings and now - self._endings[0] > RATE_WINDOW_SECONDS:
            self._endings.popleft()
        return (now - self._endings[0]) / len(self._endings) if self._endings else None
