"""Metrics of the response cache."""

from prometheus_client import Counter

REQUESTS = Counter(
    "headrace_response_cache_requests_total",
    "Static requests by what they got: hit, semantic (the answer to another question), shared (another caller's running"
    " stream) or miss.",
    ["deployment", "outcome"],
)
COMPARISONS = Counter(
    "headrace_response_cache_comparisons_total",
    "Questions that were compared with answered ones, by what that came to: found, none, unreadable (longer than the"
    " encoder reads), or why not: timeout, overload, crash, error, store.",
    ["outcome"],
)
BYPASSED = Counter(
    "headrace_response_cache_bypassed_total",
    "Requests under a policy that had nothing to do with the cache, by why.",
    ["reason"],
)
KEPT = Counter("headrace_response_cache_kept_total", "Answers that were kept.", ["deployment"])
NOT_KEPT = Counter(
    "headrace_response_cache_not_kept_total", "Finished static answers that were not kept, by why.", ["reason"]
)
KEPT_BYTES = Counter("headrace_response_cache_kept_bytes_total", "Characters of answers that were kept, as UTF-8.")
EVICTED = Counter("headrace_response_cache_evicted_total", "Answers that went because their tenant's room was full.")
ALARMS = Counter(
    "headrace_response_cache_alarms_total", "Times that a tenant's room became more than nine tenths full; see the log."
)
SAVED_TOKENS = Counter(
    "headrace_response_cache_saved_tokens_total", "Tokens that were not generated again.", ["deployment"]
)
SAVED_SECONDS = Counter(
    "headrace_response_cache_saved_seconds_total",
    "Engine time of answers that were not computed again.",
    ["deployment"],
)
SECOND_CHANCES = Counter(
    "headrace_response_cache_second_chances_total",
    "Callers whose shared stream failed with its worker, by whether they were admitted again.",
    ["deployment", "outcome"],
)
