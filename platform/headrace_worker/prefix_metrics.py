"""Metrics of the prefix cache, and of streams that were left to the worker that holds their prompt's beginning."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace_wire.messages import Usage
from headrace_wire.request_queue import Claimed


class PrefixMetrics:
    """Counts prompts' tokens by whether they had to be computed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._preferences = Counter(
            "headrace_worker_preferences",
            "Streams claimed, by what became of leaving them to the worker that holds their prompt's beginning: taken "
            "by that one, expired (by another one, later), none (nobody was preferred).",
            ["outcome"],
            registry=registry,
        )
        self.prompt_tokens = self.cached_tokens = 0
        self._prompt_tokens = Counter(
            "headrace_worker_prompt_tokens", "Prompt tokens of ended streams.", registry=registry
        )
        self._cached_tokens = Counter(
            "headrace_worker_cached_tokens", "Those of them that the prefix cache had.", registry=registry
        )
        self.blocks = Gauge(
            "headrace_worker_prefix_blocks", "Blocks of 32 tokens that the prefix cache should hold.", registry=registry
        )

    def claimed(self, claimed: Claimed) -> None:
        """Count a claim."""
        self._preferences.labels(claimed.preference.value or "none").inc()

    def ended(self, usage: Usage) -> None:
        """Count the prompt of a stream that this worker's engine has answered."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._cached_tokens.inc(usage.cached_tokens)
