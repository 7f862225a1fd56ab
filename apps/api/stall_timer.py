"""A deadline on acknowledgements: it costs nothing per token, and nothing at all while nothing is owed."""

import asyncio
from collections.abc import Callable


class StallTimer:
    """Calls `on_stall` when something was owed for `seconds` without any progress."""

    def __init__(self, seconds: float, on_stall: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._progress_at = 0.0
        self._owed = False
        self._handle: asyncio.TimerHandle | None = None

    def owe(self) -> None:
        """Something was sent that must be acknowledged."""
        if not self._owed:
            self._owed = True
            self._progress_at = self._loop.time()
            if self._handle is None:
                self._handle = self._loop.call_later(self._seconds, self._check)

    def progress(self, *, still_owed: bool) -> None:
        """Something was acknowledged."""
        self._owed = still_owed
        self._progress_at = self._loop.time()

    def stop(self) -> None:
        """End the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _check(self) -> None:
        self._handle = None
        if not self._owed:
            return
        left = self._progress_at + self._seconds - self._loop.time()
        if left <= 0:
            self._on_stall()
        else:
            self._handle = self._loop.call_later(left, self._check)
