"""How many streams one gateway serves, and when a refused one may come back."""

import time
from collections import deque

from headrace_wire.errors import ServerOverloadedError

DEFAULT_HARD_LIMIT = 2048
RATE_WINDOW_SECONDS = 30.0
MAX_RETRY_SECONDS = 120.0


class StreamLimit:
    """A hard limit on readers; beyond it a new one is refused with a retry time from the measured rate of endings."""

    def __init__(self, hard: int = DEFAULT_HARD_LIMIT) -> None:
        self.hard = hard
        self.open = 0
        self.refused = 0
        self._endings: deque[float] = deque(maxlen=1024)

    def enter(self) -> None:
        """Take a place.

        Raises:
            ServerOverloadedError: all are taken.
        """
        if self.open >= self.hard:
            self.refused += 1
            raise ServerOverloadedError(
                f"This gateway serves {self.hard} streams, its limit; try again later.",
                retry_after_seconds=self.retry_after_seconds(),
            )
        self.open += 1

    def leave(self) -> None:
        """Give a place back."""
        self.open -= 1
        self._endings.append(time.monotonic())

    def retry_after_seconds(self) -> float:
        """Return when a place may be free: the time that one ending takes at the rate of the last half minute."""
        now = time.monotonic()
        while self._endings and now - self._endings[0] > RATE_WINDOW_SECONDS:
            self._endings.popleft()
        if not self._endings:
            return RATE_WINDOW_SECONDS
        return min(MAX_RETRY_SECONDS, max(1.0, (now - self._endings[0]) / len(self._endings)))
