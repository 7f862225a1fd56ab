"""The worker's own Prometheus metrics; vLLM registers its `vllm:*` beside them in the same registry."""

import logging

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from headrace_wire.batch import BatchReport
from headrace_wire.messages import Ended
from headrace_wire.request_queue import Claimed
from headrace_wire.timing import TPOT_BUCKETS_SECONDS, TTFT_BUCKETS_SECONDS, tpot_seconds
from headrace_worker.checkpoint_metrics import CheckpointMetrics
from headrace_worker.engine import EngineStats
from headrace_worker.guard_metrics import GuardMetrics
from headrace_worker.healing import EngineEnd
from headrace_worker.memory_usage import memory_usage
from headrace_worker.prefill_metrics import PrefillMetrics
from headrace_worker.prefix_metrics import PrefixMetrics
from headrace_worker.prompt_cache_use import PromptCacheUse

log = logging.getLogger(__name__)


class WorkerMetrics:
    """Counts streams and tokens of one worker process. Cheap enough to be called once per engine step."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self.tokens_generated = 0
        self.preemptions = 0
        self._engine_preemptions = 0
        """As the engine counts, which begins again with each of its lives."""
        self._tokens = Counter("headrace_worker_tokens", "Tokens that the engine generated.", registry=registry)
        self._claims = Counter("headrace_worker_claims", "Streams taken from the queue.", registry=registry)
        self._ends = Counter(
            "headrace_worker_streams_ended",
            "Streams brought to their end, by finish reason.",
            ["finish_reason"],
            registry=registry,
        )
        self.claims_unreadable = Counter(
            "headrace_worker_claims_unreadable",
            "Streams taken from the queue whose requests cannot be read: they end with an error.",
            registry=registry,
        )
        self.settlements_set_aside = Counter(
            "headrace_worker_settlements_set_aside",
            "Streams that ended and could not be settled: ended without being booked, and kept for a person.",
            registry=registry,
        )
        self._engine_starts = Counter("headrace_worker_engine_starts", "Engine starts.", ["outcome"], registry=registry)
        self._engine_ends = Counter(
            "headrace_worker_engine_ends",
            "Engines that ended against their worker's will: not started, died, or ejected for failing streams.",
            ["reason"],
            registry=registry,
        )
        for end in EngineEnd:
            self._engine_ends.labels(end.value)
        self.quarantined = Gauge(
            "headrace_worker_quarantined",
            "1 while no engine is started because too many have ended; a person has it tried again.",
            registry=registry,
        )
        self.cold_start = Gauge(
            "headrace_worker_cold_start_seconds", "From the engine's start until it was warm.", registry=registry
        )
        self.warm_ups = Counter(
            "headrace_worker_warm_ups", "Dummy inferences of an engine that had been idle.", registry=registry
        )
        Gauge(
            "headrace_worker_memory_usage",
            "Memory in use of the worker's machine or control group, whichever is fuller, 0 to 1.",
            registry=registry,
        ).set_function(memory_usage)
        self.asleep = Gauge(
            "headrace_worker_asleep", "1 while the engine is ended because nobody used it.", registry=registry
        )
        self.wakes = Counter(
            "headrace_worker_wakes", "Engines that were started again for a request.", registry=registry
        )
        self._live = Gauge("headrace_worker_streams", "Streams worked on.", registry=registry)
        self._batch_limit = Gauge(
            "headrace_worker_batch_limit",
            "Streams that may run at once, and how many each rule of the dynamic batch would let.",
            ["rule"],
            registry=registry,
        )
        self._held = Gauge("headrace_worker_streams_held", "Streams out of credit.", registry=registry)
        self._spilled = Gauge(
            "headrace_worker_streams_spilled", "Streams out of credit and out of the KV cache.", registry=registry
        )
        self._preemptions = Counter(
            "headrace_worker_preemptions",
            "Running requests that lost their KV cache to others and were computed again.",
            registry=registry,
        )
        self.credit_stalls = Counter(
            "headrace_worker_credit_stalls", "Times that a stream ran out of credit.", registry=registry
        )
        self._suspensions = Counter(
            "headrace_worker_suspensions",
            "Held streams that are being suspended, by reason.",
            ["reason"],
            registry=registry,
        )
        self._given_back = Counter(
            "headrace_worker_streams_given_back",
            "Streams given up before their end, by what became of them.",
            ["outcome"],
            registry=registry,
        )
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

        self._checkpoints = CheckpointMetrics(registry)
        self.guard = GuardMetrics(registry)
        self.prefixes = PrefixMetrics(registry)
        self.prefills = PrefillMetrics(registry)
        self.prompt_caches = PromptCacheUse(self.prefills)

    def claimed(self, claimed: Claimed) -> None:
        """Count a claim."""
        self._claims.inc()
        self.prefixes.claimed(claimed)
        if not claimed.had_owner:
            self._queue_time.observe(claimed.queue_time)

    def generated(self, tokens: int) -> None:
        """Count one engine step's tokens."""
        self.tokens_generated += tokens
        self._tokens.inc(tokens)

    def ended(self, ended: Ended, *, new_tokens: int) -> None:
        """Count a stream's end; `new_tokens` came from this worker's engine, and the timings are theirs."""
        self._ends.labels(ended.finish_reason.value).inc()
        if new_tokens:
            self.prefixes.ended(ended.usage)
            self._prefill_time.observe(ended.timings.prefill_time)
        if new_tokens > 1:
            self._tpot.observe(tpot_seconds(ended.timings.decode_time, new_tokens))

    def suspended(self, reason: str) -> None:
        """Count a stream that is being suspended."""
        self._suspensions.labels(reason).inc()

    def given_back(self, outcome: str) -> None:
        """Count a stream that left before its end, or was to."""
        self._given_back.labels(outcome).inc()

    def engine_load(self, live: int, stats: EngineStats) -> None:
        """Take note of the streams worked on, and of what the engine says of them."""
        self._live.set(live)
        self._held.set(stats.num_requests_held)
        self._spilled.set(stats.num_requests_spilled)
        self._checkpoints.take(stats.checkpoints)
        new = stats.num_preemptions - self._engine_preemptions
        self._engine_preemptions = stats.num_preemptions
        self.preemptions += new
        self._preemptions.inc(new)

    def batch(self, report: BatchReport) -> None:
        """Show the batch limit and what the rules say."""
        for rule, limit in (("in_force", report.limit), ("classic", report.classic), ("objectives", report.objectives)):
            self._batch_limit.labels(rule).set(limit)

    def engine_started(self, outcome: str) -> None:
        """Count an attempt to start the engine; `outcome` is `ready`, `refused` or `failed`."""
        self._engine_starts.labels(outcome).inc()
        self._engine_preemptions = 0

    def engine_ended(self, end: EngineEnd) -> None:
        """Count an engine's end that was not wanted."""
        self._engine_ends.labels(end.value).inc()

    def serve(self, port: int) -> None:
        """Serve the registry on a loopback port; 0 serves nothing."""
        if port:
            start_http_server(port, addr="127.0.0.1", registry=self._registry)
            log.info("metrics on http://127.0.0.1:%d/metrics", port)
