"""The gateway's own metrics. Names follow OpenTelemetry GenAI semantics; no per-user or per-stream labels."""

from prometheus_client import Counter, Gauge, Histogram

from headrace_wire.timing import TTFT_BUCKETS_SECONDS

TTFT = Histogram(
    "headrace_time_to_first_token_seconds",
    "Arrival at the gateway to first token handed to the transport.",
    ["deployment", "transport"],
    buckets=TTFT_BUCKETS_SECONDS,
)
E2E = Histogram(
    "headrace_request_duration_seconds",
    "Arrival at the gateway to the last byte handed to the transport.",
    ["deployment", "transport"],
    buckets=TTFT_BUCKETS_SECONDS,
)
STREAMS_ENDED = Counter(
    "headrace_streams_ended_total",
    "Streams by how they ended for their reader.",
    ["deployment", "transport", "outcome"],
)
TOKENS_SENT = Counter("headrace_tokens_sent_total", "Tokens handed to transports.", ["deployment"])
STREAMS_OPEN = Gauge("headrace_streams_open", "Readers being served now.", ["transport"], multiprocess_mode="livesum")

QUEUE_ETAS = Counter(
    "headrace_queue_etas_total",
    "Waits that were told how long they may take, by whether they did (80 % should); withdrawn: workers came or went.",
    ["outcome"],
)
STREAMS_WAITING = Gauge("headrace_streams_waiting", "Streams in line for this gateway.", multiprocess_mode="livesum")
STREAMS_REFUSED = Counter("headrace_streams_refused_total", "Streams refused because this gateway was full.")
CREDIT_MESSAGES = Counter("headrace_credit_messages_total", "Credit sent to workers, coalesced.")
CREDIT_STALLS = Counter(
    "headrace_credit_stalls_total", "Times that a reader had everything that its credit allowed and acknowledged less."
)
CLIENTS_STALLED = Counter("headrace_clients_stalled_total", "Clients closed because they acknowledged nothing in time.")
CONNECTIONS_REFUSED = Counter(
    "headrace_connections_refused_total", "Connections refused because their tenant or user has too many."
)
FRAMES_DELAYED = Counter(
    "headrace_frames_delayed_total", "WebSocket frames that waited because their connection sends too many."
)
TRANSPORT_BUFFERED = Gauge(
    "headrace_transport_buffered_bytes", "Bytes in user space that clients do not take.", multiprocess_mode="livesum"
)
GARBAGE_FREED = Counter("headrace_garbage_freed_total", "What sweeps after dead processes freed.", ["kind"])
CHECKPOINTS_FREED_BYTES = Counter("headrace_checkpoints_freed_bytes_total", "Disk space that such sweeps gave back.")
GARBAGE_FREED_BYTES = Counter("headrace_garbage_freed_bytes_total", "Redis memory of what such sweeps deleted.")
SETTLEMENTS_SET_ASIDE = Counter(
    "headrace_settlements_set_aside_total",
    "Streams that ended and could not be settled: ended without being booked, and kept for a person.",
)

DRAFT_TOKENS = Counter(
    "headrace_draft_tokens_total", "Tokens that were to be computed while their prompt was typed.", ["deployment"]
)
DRAFT_TOKENS_WASTED = Counter(
    "headrace_draft_tokens_wasted_total", "Those of them with which no prompt began that was sent.", ["deployment"]
)
DRAFTS_SETTLED = Counter(
    "headrace_drafts_settled_total",
    "Drafts by what came of them: a prompt was sent that begins with what was computed (hit), or none was (missed).",
    ["deployment", "outcome"],
)
DRAFTS_OFF = Counter("headrace_drafts_off_total", "Drafts for which nothing was computed, by reason.", ["reason"])
DRAFTED_TTFT = Histogram(
    "headrace_drafted_time_to_first_token_seconds",
    "As headrace_time_to_first_token_seconds, of the prompts that begin with what was computed while they were typed.",
    ["deployment", "transport"],
    buckets=TTFT_BUCKETS_SECONDS,
)

BREAKER_STATE = Gauge(
    "headrace_breaker_state",
    "A deployment's circuit breaker: 0 closed, 0.5 half open (some requests try it), 1 open.",
    ["deployment"],
    multiprocess_mode="livemax",
)
REQUESTS_DIVERTED = Counter(
    "headrace_requests_diverted_total",
    "Requests that went to a fallback because their deployment's breaker was not closed.",
    ["deployment", "fallback"],
)
REQUESTS_BROKEN_OFF = Counter(
    "headrace_requests_broken_off_total",
    "Requests refused because their deployment's breaker was not closed and there was no fallback for them.",
    ["deployment"],
)

LATENCIES_LOST = Counter(
    "headrace_latency_slots_lost_total", "Slots of latencies that were given up because Redis was away for too long."
)
