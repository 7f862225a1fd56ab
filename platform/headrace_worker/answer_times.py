"""When one answer's tokens came, in this worker's monotonic seconds."""

import time

from headrace_wire.messages import Timings


class AnswerTimes:
    """Notes moments; 0.0 stands for one that has not come."""

    __slots__ = ("claimed_at", "first_text_at", "first_token_at", "last_token_at", "queue_time")

    def __init__(self, queue_time: float) -> None:
        self.queue_time = queue_time
        """Of the first owner."""
        self.claimed_at = time.monotonic()
        self.first_token_at = 0.0
        self.first_text_at = 0.0
        self.last_token_at = 0.0

    def token(self, now: float) -> None:
        """Note that the engine gave tokens."""
        if not self.first_token_at:
            self.first_token_at = now
        self.last_token_at = now

    def timings(self, *, is_guarded: bool) -> Timings:
        """Return the durations, as the log has them."""
        if not self.first_token_at:
            return Timings(self.queue_time)
        guard_time = self.first_text_at - self.first_token_at if is_guarded and self.first_text_at else 0.0
        prefill_time = self.first_token_at - self.claimed_at
        return Timings(self.queue_time, prefill_time, self.last_token_at - self.first_token_at, guard_time)
