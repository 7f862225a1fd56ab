"""What is known of one time: what requests took, what was counted, and what the fleet was like."""

from dataclasses import dataclass, field
from statistics import fmean, pstdev

from headrace_wire.latency.measures import PHASES, Measure, Tally
from headrace_wire.latency.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A deployment's workers and queue; means over the time where nothing else is said, None where not known."""

    workers: float = 0.0
    """Ready ones."""
    workers_started: int = 0
    """Lives of workers that became ready, or were still loading."""
    slots: float = 0.0
    """Requests that all ready workers run at once; 0: not known."""
    running: float = 0.0
    held: float = 0.0
    """Out of credit: their readers do not come on."""
    spilled: float = 0.0
    waiting: float = 0.0
    waiting_most: float = 0.0
    kv_cache_usage_most: float = 0.0
    preemptions: float | None = None
    """How many running requests lost their KV cache to others and were computed again."""
    memory_usage: float | None = None
    """Of the fullest machine or control group, the most there was, 0 to 1."""
    gpu_memory_usage: float | None = None
    """Of the fullest worker's GPUs, 0 to 1."""
    unused_models: tuple[str, ...] = ()
    """Other deployments whose workers keep a model loaded and were asked for nothing."""
    gpu_clock_mhz: float | None = None
    paces: tuple[float, ...] = ()
    """Tokens per second of a request that runs, step by step: more requests by themselves change nothing."""

    @property
    def running_per_worker(self) -> float:
        """How large the batch was."""
        return self.running / max(self.workers, 1.0)

    @property
    def swing(self) -> float:
        """Standard deviation of the paces over their mean; 0 where there are fewer than four steps."""
        mean = fmean(self.paces) if len(self.paces) >= 4 else 0.0
        return pstdev(self.paces) / mean if mean else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One time of one deployment, or of all."""

    seconds: float
    summary: Summary
    fleet: Fleet = field(default_factory=Fleet)

    @property
    def requests(self) -> int:
        """How many ended."""
        return self.summary.tally(Tally.REQUESTS)

    @property
    def requests_per_second(self) -> float:
        """How many ended a second."""
        return self.requests / self.seconds if self.seconds else 0.0

    def count(self, measure: Measure) -> int:
        """How often a duration was measured."""
        found = self.summary.histograms.get(measure)
        return found.count if found is not None else 0

    def mean(self, measure: Measure) -> float:
        """The mean of a duration in seconds, of which a phase that a request did not have is 0."""
        found = self.summary.histograms.get(measure)
        if found is None:
            return 0.0
        return found.sum_seconds / max(found.count, self._least(measure))

    def quantile(self, measure: Measure, share: float) -> float:
        """A quantile in seconds; 0.0 where there is nothing."""
        found = self.summary.histograms.get(measure)
        return found.quantile(share) if found is not None else 0.0

    def per_request(self, tally: Tally) -> float:
        """How often something was counted for each request."""
        return self.summary.tally(tally) / max(self.requests, 1)

    @property
    def cached_share(self) -> float | None:
        """The share of prompt tokens that a prefix cache had; None where no prompts were counted."""
        prompt = self.summary.tally(Tally.PROMPT_TOKENS)
        return self.summary.tally(Tally.CACHED_TOKENS) / prompt if prompt else None

    def _least(self, measure: Measure) -> int:
        """Phases are parts of TTFT: a phase that only some requests have counts for all of them."""
        return max(self.count(Measure.TTFT), 1) if measure in PHASES else 1
