"""When to connect again: delays that grow, spread by chance, until patience ends."""

import random

FIRST_DELAY_SECONDS = 0.25
LONGEST_DELAY_SECONDS = 15.0


class Backoff:
    """Delays between attempts. Half of each is chance: clients of a gateway that died do not come back as one."""

    def __init__(self, connect_seconds: float, reconnect_seconds: float) -> None:
        """How long to try without success: before the server has served us at all, and after it has."""
        self.patience_seconds = connect_seconds
        self._reconnect_seconds = reconnect_seconds
        self._failures = 0
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        """The server serves us: the next loss begins anew."""
        self._failures = 0
        self._failing_since = None
        self.patience_seconds = self._reconnect_seconds

    def failed(self, now: float, *, at_least: float = 0.0) -> float | None:
        """Return the seconds to wait before the next attempt, or None when patience has ended."""
        if self._failing_since is None:
            self._failing_since = now
        ceiling = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        delay = at_least + ceiling / 2 + random.random() * ceiling / 2  # noqa: S311 - no secret
        if now + delay - self._failing_since > self.patience_seconds:
            return None
        return delay
