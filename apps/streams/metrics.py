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
