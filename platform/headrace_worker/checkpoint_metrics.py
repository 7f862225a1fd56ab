"""What became of KV checkpoints, as the engine counts it, in the worker's Prometheus metrics."""

from prometheus_client import CollectorRegistry, Counter

from headrace_worker.engine_core.checkpoints.counts import CheckpointCounts


class CheckpointMetrics:
    """Follows the engine's counts, which begin again with each of its lives."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"headrace_worker_checkpoint{name}", documentation, labels, registry=registry)

        self._saved = counter("s_saved", "Files of KV blocks written.")
        self._loaded = counter("s_loaded", "Requests that went on from a checkpoint.")
        self._refused = counter("s_refused", "Saves and loads that did not come about, by reason.", ("reason",))
        self._bytes = counter("_bytes", "Bytes written and read.", ("direction",))
        self._seconds = counter("_seconds", "Time of the threads that write and read.", ("direction",))
        self._known = CheckpointCounts()

    def take(self, counts: CheckpointCounts) -> None:
        """Add what is new."""
        known = self._known if counts.continues(self._known) else CheckpointCounts()
        self._known = counts
        self._saved.inc(counts.saved - known.saved)
        self._loaded.inc(counts.loaded - known.loaded)
        self._bytes.labels("saved").inc(counts.saved_bytes - known.saved_bytes)
        self._bytes.labels("loaded").inc(counts.loaded_bytes - known.loaded_bytes)
        self._seconds.labels("saved").inc(counts.save_seconds - known.save_seconds)
        self._seconds.labels("loaded").inc(counts.load_seconds - known.load_seconds)
        for reason, count in counts.refused.items():
            self._refused.labels(reason).inc(count - known.refused.get(reason, 0))
