"""The ledger's own metrics."""

from prometheus_client import Counter, Gauge

USAGE_STORED = Counter("headrace_usage_stored_total", "Ended streams that the ledger has stored.")
USAGE_SET_ASIDE = Counter("headrace_usage_set_aside_total", "Ended streams that the ledger could not read; not lost.")
USAGE_BACKLOG = Gauge(
    "headrace_usage_backlog", "Ended streams that wait for the ledger.", multiprocess_mode="livemostrecent"
)
NOTICES_SENT = Counter("headrace_notices_sent_total", "Notices that were delivered.", ["channel"])
NOTICES_FAILED = Counter("headrace_notices_failed_total", "Tries to deliver a notice that failed.", ["channel"])
