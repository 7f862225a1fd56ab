"""When to tell the server what was consumed: often enough for its window, seldom enough to cost nothing."""

ACK_POSITIONS = 16
"""At once after so many positions, where the stream's window is not known."""
ACK_SECONDS = 1.0
"""At the latest after so long, also for a slow consumer: the server cuts off who acknowledges nothing."""
QUIET_SECONDS = 0.025
"""What is left is sent when so long nothing came: the engine may be waiting for it."""
WINDOW_PARTS = 4
"""The server renews credit in quarters of the window; more acknowledgements than that change nothing."""


class Acknowledgements:
    """Coalesces the positions of one stream."""

    def __init__(self, *, window: int | None, after: int = 0) -> None:
        """`window` is what the stream was started with, where the caller chose it."""
        self._step = max(1, min(ACK_POSITIONS, window // WINDOW_PARTS)) if window is not None else ACK_POSITIONS
        self._consumed = after
        self._sent = after
        self._pending_since = 0.0

    @property
    def is_pending(self) -> bool:
        """Whether something is consumed that the server was not told of."""
        return self._consumed > self._sent

    def consumed(self, seq: int, now: float) -> None:
        """Note that everything up to `seq` was consumed."""
        if seq > self._consumed:
            if not self.is_pending:
                self._pending_since = now
            self._consumed = seq

    def connected(self, seq: int) -> None:
        """A new connection resumes after `seq`, which counts as acknowledged."""
        self._sent = max(self._sent, seq)

    def due(self, now: float, *, is_quiet: bool = False) -> int | None:
        """Return the position to acknowledge now, if any; it counts as sent."""
        if not self.is_pending:
            return None
        if not is_quiet and self._consumed - self._sent < self._step and now - self._pending_since < ACK_SECONDS:
            return None
        self._sent = self._consumed
        return self._consumed
