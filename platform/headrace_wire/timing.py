"""Clock definitions, one home. Durations are monotonic and measured inside one process; names end in their unit.

| name | from | to | measured by |
|---|---|---|---|
| `ttft_seconds` | request read by the gateway | first token written to its socket | gateway |
| `queue_time` | admitted | claimed | Redis (both ends are Redis TIME) |
| `prefill_time` | claimed | first token out of the engine | worker |
| `decode_time` | first token out of the engine | last token | worker |
| `guard_time` | first token out of the engine | first text that guardrails let out | worker |
| `itl_seconds` | one output | the next | gateway |
| `tpot_seconds` | `decode_time / (completion_tokens - 1)` | | worker |
| `e2e_latency_seconds` | request read | last byte handed to the transport | gateway |
"""

TTFT_BUCKETS_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0, 2.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0),
)
"""OpenTelemetry GenAI `time_to_first_token` buckets, extended for queues and for our goals (0.2 and 2 s)."""

TPOT_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""OpenTelemetry GenAI `time_per_output_token` buckets with two finer ones at the start."""


def tpot_seconds(decode_time: float, completion_tokens: int) -> float:
    """Return the time per output token after the first; 0.0 when there is no second token."""
    return decode_time / (completion_tokens - 1) if completion_tokens > 1 else 0.0
