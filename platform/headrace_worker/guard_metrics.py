"""What guardrails do in this worker, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from headrace_wire.guard_policy import Direction
from headrace_wire.interventions import Intervention, Outcome
from headrace_wire.timing import TTFT_BUCKETS_SECONDS


class GuardMetrics:
    """Counts judgements, what came of them, and how long text waited for them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._windows = Histogram(
            "headrace_worker_guard_window_seconds",
            "From a window that is complete to all its verdicts.",
            ["direction"],
            buckets=TTFT_BUCKETS_SECONDS,
            registry=registry,
        )
        self._hold_back = Histogram(
            "headrace_worker_guard_hold_back_seconds",
            "From a guarded answer's first token to the first text that may go out: the guard's part of the TTFT.",
            buckets=TTFT_BUCKETS_SECONDS,
            registry=registry,
        )
        self._failures = Counter(
            "headrace_worker_guard_judge_failures",
            "Verdicts that did not come, by reason.",
            ["reason"],
            registry=registry,
        )
        self._interventions = Counter(
            "headrace_worker_guard_interventions",
            "What rules found, by kind of rule and by what was done.",
            ["rule_kind", "outcome"],
            registry=registry,
        )
        self._unchecked = Counter(
            "headrace_worker_guard_unchecked_windows",
            "Windows that went out although a judge failed, as their policy says.",
            registry=registry,
        )

    def judged(self, direction: Direction, seconds: float) -> None:
        """Count a window."""
        self._windows.labels(direction.value).observe(seconds)

    def judge_failed(self, reason: str) -> None:
        """Count a verdict that did not come."""
        self._failures.labels(reason).inc()

    def held_back(self, seconds: float) -> None:
        """Note how long a guarded answer's first text was held."""
        self._hold_back.observe(seconds)

    def intervened(self, record: Intervention) -> None:
        """Count what a rule found."""
        outcome = "shadow" if record.is_shadow else record.outcome.value
        self._interventions.labels(record.rule_kind, outcome).inc()
        if record.outcome is Outcome.UNCHECKED and not record.is_shadow:
            self._unchecked.inc()
