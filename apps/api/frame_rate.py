"""How fast one connection may send frames. A flood is slowed, not refused: reading pauses, so TCP slows its sender.

Acknowledgements of something new are not counted: there cannot be more of them than tokens were sent, and a client that
acknowledges each token must not be slowed to this rate, nor wait with a `cancel` behind them.
"""

import time

FRAMES_PER_SECOND = 200.0
BURST = 400.0


class FrameRate:
    """A token bucket that says how long to wait before the next frame is looked at."""

    def __init__(self, per_second: float = FRAMES_PER_SECOND, burst: float = BURST) -> None:
        self._per_second = per_second
        self._burst = burst
        self._level = burst
        self._at = time.monotonic()

    def take(self) -> float:
        """Account for one frame; returns seconds to wait, 0.0 within the rate."""
        now = time.monotonic()
        self._level = min(self._burst, self._level + (now - self._at) * self._per_second) - 1.0
        self._at = now
        return max(0.0, -self._level / self._per_second)
