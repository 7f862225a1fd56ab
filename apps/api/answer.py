"""What one reader has been given of one answer: durations for headers and metrics, tokens for the counters.

The latency book is told by `LatencyReading`, which says what counts where.
"""

import time

from apps.streams import metrics
from apps.streams.latency_reading import LatencyReading
from headrace_wire.messages import AnyLogEntry, Delta, Ended, Started


class Answer:
    """Collects from log entries what an edge needs beside their text."""

    def __init__(
        self, deployment: str, transport: str, started_at: float, reading: LatencyReading, *, was_drafted: bool = False
    ) -> None:
        """`started_at`: `time.perf_counter()` when the request arrived; `was_drafted`: its prompt was begun before."""
        self.deployment = deployment
        self.transport = transport
        self.started_at = started_at
        self._reading = reading
        self._was_drafted = was_drafted
        self.queue_seconds = 0.0
        self.ttft_seconds: float | None = None
        self.ended: Ended | None = None
        self._untold_after: int | None = None
        self._tokens = 0
        self._tokens_told = 0
        """With texts that were sent."""
        self._written_at: float | None = None
        """When what was taken last was handed to the transport; None before that."""
        metrics.STREAMS_OPEN.labels(transport).inc()

    def take(self, entries: list[AnyLogEntry]) -> tuple[str, Ended | None]:
        """Account for entries; return their text, and the terminal entry once it came."""
        self._written_at = None
        text = ""
        for entry in entries:
            if isinstance(entry, Delta):
                self._tokens += entry.tokens
                text += entry.text
                if self._untold_after is None:
                    self._untold_after = entry.seq - entry.tokens
            elif isinstance(entry, Started):
                self._reading.started(entry)
                if entry.attempt == 1:
                    self.queue_seconds = entry.queue_time
            elif isinstance(entry, Ended):
                self.ended = entry
        return text, self.ended

    def after_of(self, delta: Delta) -> int:
        """Return what `told_after` would if this entry was told now."""
        return delta.seq - delta.tokens if self._untold_after is None else self._untold_after

    def take_live(self, tokens: int, now: float) -> None:
        """Account for one entry whose text was sent at `now`, by `time.monotonic()` (see `latency_reading`)."""
        self._tokens = told = self._tokens + tokens
        self._untold_after = None
        self._reading.text(told - self._tokens_told, now)
        self._tokens_told = told

    def stalled(self) -> None:
        """Note that the client does not take what is there."""
        self._reading.stalled()

    def timed_out(self) -> None:
        """Note that the client took nothing until its deadline."""
        self._reading.timed_out()

    def told_after(self) -> int:
        """Return the position after which the text that is told now begins, as the log has it; call once per text.

        Not what was told before: a reader compares it with that, and sees if something between was left out.
        """
        after, self._untold_after = self._untold_after, None
        return after or 0

    def writes(self) -> None:
        """Note that what was taken is handed to the transport now: durations end here, and not behind the write.

        On a busy machine the client has its turn before we have ours again, and the text for longer than it would seem.
        """
        self._written_at = time.perf_counter()

    def sent_text(self) -> None:
        """Note that text was handed to the transport; the first call measures TTFT."""
        tokens, self._tokens_told = self._tokens - self._tokens_told, self._tokens
        at = time.perf_counter() if self._written_at is None else self._written_at
        if self.ttft_seconds is not None:
            self._reading.text(tokens, at)
        else:
            self._reading.first_text(tokens, at)
            self.ttft_seconds = at - self.started_at
            metrics.TTFT.labels(self.deployment, self.transport).observe(self.ttft_seconds)
            if self._was_drafted:
                metrics.DRAFTED_TTFT.labels(self.deployment, self.transport).observe(self.ttft_seconds)

    def close(self, *, client_timed_out: bool) -> None:
        """Write what is counted once per answer; call once.

        `client_timed_out`: its connection was cut, since the client took, or answered, nothing in time.
        """
        if client_timed_out:
            self.timed_out()
        self._reading.close(self.ended, self._tokens - self._tokens_told, self._written_at)
        outcome = self.ended.state.value if self.ended is not None else "left"
        metrics.STREAMS_OPEN.labels(self.transport).dec()
        metrics.TOKENS_SENT.labels(self.deployment).inc(self._tokens)
        metrics.STREAMS_ENDED.labels(self.deployment, self.transport, outcome).inc()
        metrics.E2E.labels(self.deployment, self.transport).observe(time.perf_counter() - self.started_at)
