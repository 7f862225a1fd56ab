"""What became of prefills, in the worker's Prometheus metrics."""

from prometheus_client import CollectorRegistry, Counter

from headrace_wire.messages import PrefillPurpose
from headrace_wire.prefill_reports import PrefillOutcome


class PrefillMetrics:
    """Counts by what the prefixes are for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(f"headrace_worker_prefill{name}", documentation, ["purpose", *labels], registry=registry)

        self._begun = counter("s_begun", "Prefixes that began to be computed ahead of any request.")
        self._ended = counter("s_ended", "What became of them, also of those that never began.", "outcome")
        self._given_way = counter("s_given_way", "Times that one stopped for a request, to go on later.")
        self._tokens = counter("_tokens", "Tokens of these prefixes: computed, or found in the cache.", "found")
        self._seconds = counter("_seconds", "Time in which they were computed.")
        self._computed_tokens = 0
        self._computed_seconds = 0.0

    @property
    def seconds_per_token(self) -> float:
        """How long computing a token of a prompt takes; 0.0 as long as none was."""
        return self._computed_seconds / self._computed_tokens if self._computed_tokens else 0.0

    def begun(self, purpose: PrefillPurpose) -> None:
        """Count one that begins."""
        self._begun.labels(purpose.value).inc()

    def given_way(self, purpose: PrefillPurpose) -> None:
        """Count that a request goes first."""
        self._given_way.labels(purpose.value).inc()

    def advanced(self, purpose: PrefillPurpose, *, computed: int, cached: int, seconds: float) -> None:
        """Count tokens."""
        self._tokens.labels(purpose.value, "computed").inc(computed)
        self._tokens.labels(purpose.value, "cached").inc(cached)
        self._seconds.labels(purpose.value).inc(seconds)
        if computed:
            self._computed_tokens += computed
            self._computed_seconds += seconds

    def ended(self, purpose: PrefillPurpose, outcome: PrefillOutcome) -> None:
        """Count an end."""
        self._ended.labels(purpose.value, outcome.value).inc()
