"""What is counted and kept of a stream when it has ended or was given back: metrics, health, prefixes, checkpoints."""

from headrace_worker.batch_control import DynamicBatch
from headrace_worker.checkpoint_disposal import CheckpointDisposal
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.generation import Generation
from headrace_worker.guarding import Guarding
from headrace_worker.healing import Health
from headrace_worker.held_prefixes import HeldPrefixes
from headrace_worker.metrics import WorkerMetrics


class Reckoning:
    """Of one worker."""

    def __init__(
        self,
        metrics: WorkerMetrics,
        *,
        health: Health,
        batch: DynamicBatch,
        held_prefixes: HeldPrefixes,
        guarding: Guarding,
        checkpoints: CheckpointSettings | None,
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._batch = batch
        self._held_prefixes = held_prefixes
        self._guard_metrics = guarding.metrics
        self._checkpoints = CheckpointDisposal(checkpoints) if checkpoints is not None else None

    def left(self, generation: Generation) -> None:
        """Note a stream that this worker has no more; of one that was given back, only what the engine keeps."""
        if generation.new_tokens:
            self._held_prefixes.ended(generation.request)
        ended = generation.ended
        if ended is None:
            return
        self._metrics.ended(ended, new_tokens=generation.new_tokens)
        self._health.ended(ended)
        self._batch.ended(generation)
        self._metrics.prompt_caches.ended(generation.request, ended)
        if generation.guard is not None and generation.times.first_text_at:
            self._guard_metrics.held_back(ended.timings.guard_time)
        if self._checkpoints is not None:
            self._checkpoints.ended(generation)

    def close(self) -> None:
        """Finish what takes its time."""
        if self._checkpoints is not None:
            self._checkpoints.close()
