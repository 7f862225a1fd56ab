"""The alert rules that an installation begins with. Prometheus' rules in `deploy/prometheus` have the same names.

A migration has stored them; operators change what is stored. `prometheus` says the same in PromQL, of our metrics: of a
process that Prometheus scrapes, where the rule itself looks at a deployment.
"""

from dataclasses import dataclass

from apps.ops.alerts.enums import Direction, Duration, FleetFigure, Happening, Severity, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInRule:
    """An `AlertRule`, and its expression in PromQL."""

    key: str
    name: str
    advice: str
    signal: Signal
    threshold: float
    clear_threshold: float
    for_seconds: int
    severity: Severity
    prometheus: str
    window_seconds: int = 300
    short_window_seconds: int | None = None
    direction: Direction = Direction.ABOVE
    duration: Duration | None = None
    percentile: float | None = None
    happening: Happening | None = None
    figure: FleetFigure | None = None


def _burn(rate: float, long_window: str, short_window: str) -> str:
    """TTFT within 0.5 s for 95 % of requests: the goal that deployments without objectives of their own are shown."""
    parts = [
        f'(1 - sum by (deployment) (rate(headrace_time_to_first_token_seconds_bucket{{le="0.5"}}[{window}]))'
        f" / sum by (deployment) (rate(headrace_time_to_first_token_seconds_count[{window}]))) / 0.05 > {rate:g}"
        for window in (long_window, short_window)
    ]
    return " and ".join(parts)


BUILT_IN_RULES = (
    BuiltInRule(
        key="ttft-p95",
        name="First tokens are late",
        advice="The diagnosis beside the latency dashboard says which phase moved and what helps.",
        signal=Signal.PERCENTILE,
        duration=Duration.TTFT,
        percentile=95.0,
        threshold=0.5,
        clear_threshold=0.4,
        for_seconds=120,
        severity=Severity.WARNING,
        prometheus="histogram_quantile(0.95, sum by (deployment, le)"
        " (rate(headrace_time_to_first_token_seconds_bucket[5m]))) > 0.5",
    ),
    BuiltInRule(
        key="errors",
        name="Streams fail",
        advice="Look at the workers' states and last errors, and at the streams that failed.",
        signal=Signal.SHARE,
        happening=Happening.ERRORS,
        threshold=0.05,
        clear_threshold=0.02,
        for_seconds=60,
        severity=Severity.CRITICAL,
        prometheus='sum by (deployment) (rate(headrace_streams_ended_total{outcome="failed"}[5m]))'
        " / sum by (deployment) (rate(headrace_streams_ended_total[5m])) > 0.05",
    ),
    BuiltInRule(
        key="queue-depth",
        name="The queue is long",
        advice="Add workers, or lower what tenants may send at once.",
        signal=Signal.FLEET,
        figure=FleetFigure.WAITING,
        threshold=100,
        clear_threshold=50,
        for_seconds=60,
        severity=Severity.WARNING,
        prometheus="sum(headrace_streams_waiting) > 100",
    ),
    BuiltInRule(
        key="no-worker",
        name="No worker is ready",
        advice="Nothing is answered: start a worker, and read the last engine error on the deployment's page.",
        signal=Signal.FLEET,
        figure=FleetFigure.WORKERS_READY,
        direction=Direction.BELOW,
        threshold=1,
        clear_threshold=1,
        for_seconds=60,
        severity=Severity.CRITICAL,
        prometheus='(sum(up{job="headrace-worker"}) or vector(0)) < 1',
    ),
    BuiltInRule(
        key="kv-cache",
        name="A KV cache is almost full",
        advice="Requests will wait or be recomputed: add workers, or lower max_num_seqs or the model's length.",
        signal=Signal.FLEET,
        figure=FleetFigure.KV_CACHE_USAGE,
        threshold=0.9,
        clear_threshold=0.8,
        for_seconds=300,
        severity=Severity.WARNING,
        prometheus="max by (instance) (vllm:kv_cache_usage_perc) > 0.9",
    ),
    BuiltInRule(
        key="memory",
        name="Memory is almost full",
        advice="Unload a model that nobody asks for, or give the engine less of the memory.",
        signal=Signal.FLEET,
        figure=FleetFigure.MEMORY_USAGE,
        threshold=0.9,
        clear_threshold=0.85,
        for_seconds=300,
        severity=Severity.WARNING,
        prometheus="max by (instance) (headrace_worker_memory_usage) > 0.9",
    ),
    BuiltInRule(
        key="worker-broken",
        name="A worker cannot work",
        advice="Its engine did not start or broke; the deployment's page has its last words.",
        signal=Signal.FLEET,
        figure=FleetFigure.WORKERS_BROKEN,
        threshold=0,
        clear_threshold=0,
        for_seconds=30,
        severity=Severity.WARNING,
        prometheus='sum by (instance) (increase(headrace_worker_engine_starts_total{outcome!="ready"}[15m])) > 0',
    ),
    BuiltInRule(
        key="worker-quarantined",
        name="A worker is in quarantine",
        advice="Too many of its engines have ended: read its last error, mend that, and resume it on its page.",
        signal=Signal.FLEET,
        figure=FleetFigure.WORKERS_QUARANTINED,
        threshold=0,
        clear_threshold=0,
        for_seconds=0,
        severity=Severity.CRITICAL,
        prometheus="max by (instance) (headrace_worker_quarantined) > 0",
    ),
    BuiltInRule(
        key="worker-lost",
        name="A worker was lost",
        advice="Its process died or hung, and its streams went on elsewhere. Look at its supervisor's log.",
        signal=Signal.FLEET,
        figure=FleetFigure.WORKERS_LOST,
        threshold=0,
        clear_threshold=0,
        for_seconds=0,
        severity=Severity.WARNING,
        prometheus='up{job="headrace-worker"} < 1',
    ),
    BuiltInRule(
        key="engine-ended",
        name="An engine had to be started again",
        advice="It died, or failed too many answers. The worker's log and last error say why.",
        signal=Signal.FLEET,
        figure=FleetFigure.ENGINE_FAILURES,
        threshold=0,
        clear_threshold=0,
        for_seconds=0,
        severity=Severity.INFO,
        prometheus="sum by (instance) (increase(headrace_worker_engine_ends_total[15m])) > 0",
    ),
    BuiltInRule(
        key="breaker-open",
        name="A circuit breaker is open",
        advice="Requests go to the fallback, or are refused. The deployment's page says why and since when.",
        signal=Signal.FLEET,
        figure=FleetFigure.BREAKER_OPEN,
        threshold=0,
        clear_threshold=0,
        for_seconds=0,
        severity=Severity.CRITICAL,
        prometheus="max by (deployment) (headrace_breaker_state) > 0",
    ),
    BuiltInRule(
        key="burn-fast",
        name="An error budget burns fast",
        advice="At this pace a budget of thirty days is gone in two. Look at the diagnosis now.",
        signal=Signal.BURN_RATE,
        threshold=14.4,
        clear_threshold=14.4,
        window_seconds=3600,
        short_window_seconds=300,
        for_seconds=0,
        severity=Severity.CRITICAL,
        prometheus=_burn(14.4, "1h", "5m"),
    ),
    BuiltInRule(
        key="burn-slow",
        name="An error budget burns",
        advice="At this pace a budget of thirty days is gone in five. Look at the diagnosis today.",
        signal=Signal.BURN_RATE,
        threshold=6,
        clear_threshold=6,
        window_seconds=6 * 3600,
        short_window_seconds=1800,
        for_seconds=0,
        severity=Severity.WARNING,
        prometheus=_burn(6, "6h", "30m"),
    ),
    BuiltInRule(
        key="burn-budget",
        name="An error budget will not last",
        advice="At this pace the budget is used up at the end of its window, or before.",
        signal=Signal.BURN_RATE,
        threshold=1,
        clear_threshold=1,
        window_seconds=3 * 86_400,
        short_window_seconds=6 * 3600,
        for_seconds=0,
        severity=Severity.INFO,
        prometheus=_burn(1, "3d", "6h"),
    ),
)
