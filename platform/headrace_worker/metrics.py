"""The worker's own Prometheus metrics; vLLM registers its `vllm:*` beside them in the same registry."""

import logging

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from headrace_wire.messages import Ended
from headrace_wire.request_queue import Claimed
from headrace_wire.timing import TPOT_BUCKETS_SECONDS, TTFT_BUCKETS_SECONDS, tpot_seconds

log = logging.getLogger(__name__)


class WorkerMetrics:
    """Counts streams and tokens of one worker process. Cheap enough to be called once per engine step."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self.tokens_generated = 0
        self._tokens = Counter("headrace_worker_tokens", "Tokens that the engine generated.", registry=registry)
        self._claims = Counter("headrace_worker_claims", "Streams taken from the queue.", registry=registry)
        self._ends = Counter(
            "headrace_worker_streams_ended",
            "Streams brought to their end, by finish reason.",
            ["finish_reason"],
            registry=registry,
        )
        self._engine_starts = Counter("headrace_worker_engine_starts", "Engine starts.", ["outcome"], registry=registry)
        self.live = Gauge("headrace_worker_streams", "Streams worked on.", registry=registry)
        self._queue_time = Histogram(
            "headrace_worker_queue_time_seconds",
            "From admission to claim.",
            buckets=TTFT_BUCKETS_SECONDS,
            registry=registry,
        )
        self._prefill_time = Histogram(
            "headrace_worker_prefill_time_seconds",
            "From claim to the first token.",
            buckets=TTFT_BUCKETS_SECONDS,
            registry=registry,
        )
        self._tpot = Histogram(
            "headrace_worker_tpot_seconds",
            "Decode time per token after the first.",
            buckets=TPOT_BUCKETS_SECONDS,
            registry=registry,
        )

    def claimed(self, claimed: Claimed) -> None:
        """Count a claim."""
        self._claims.inc()
        self._queue_time.observe(claimed.queue_time)

    def generated(self, tokens: int) -> None:
        """Count one engine step's tokens."""
        self.tokens_generated += tokens
        self._tokens.inc(tokens)

    def ended(self, ended: Ended) -> None:
        """Count a stream's end."""
        self._ends.labels(ended.finish_reason.value).inc()
        completion = ended.usage.completion_tokens
        if completion:
            self._prefill_time.observe(ended.timings.prefill_time)
        if completion > 1:
            self._tpot.observe(tpot_seconds(ended.timings.decode_time, completion))

    def engine_started(self, outcome: str) -> None:
        """Count an attempt to start the engine; `outcome` is `ready`, `refused` or `failed`."""
        self._engine_starts.labels(outcome).inc()

    def serve(self, port: int) -> None:
        """Serve the registry on a loopback port; 0 serves nothing."""
        if port:
            start_http_server(port, addr="127.0.0.1", registry=self._registry)
            log.info("metrics on http://127.0.0.1:%d/metrics", port)
