"""Admission, waiting, ownership and the end of streams: typed calls of the Redis functions that decide over them."""

from headrace_wire.request_queue.calls import (
    MAX_ATTEMPTS,
    SUSPENDED_MAX_SECONDS,
    UNLISTED_GRACE_SECONDS,
    RequestQueue,
)
from headrace_wire.request_queue.replies import (
    Admission,
    CancelOutcome,
    Claimed,
    GivenBack,
    Idempotency,
    LeaseLostError,
    Place,
    Preference,
    Reaped,
    Renewal,
    StreamRecord,
    Taken,
    Unreadable,
    Verdict,
)
from headrace_wire.request_queue.settlement import TOMBSTONE_SECONDS, settle_all, settle_call, settle_set_aside

__all__ = [
    "MAX_ATTEMPTS",
    "SUSPENDED_MAX_SECONDS",
    "TOMBSTONE_SECONDS",
    "UNLISTED_GRACE_SECONDS",
    "Admission",
    "CancelOutcome",
    "Claimed",
    "GivenBack",
    "Idempotency",
    "LeaseLostError",
    "Place",
    "Preference",
    "Reaped",
    "Renewal",
    "RequestQueue",
    "StreamRecord",
    "Taken",
    "Unreadable",
    "Verdict",
    "settle_all",
    "settle_call",
    "settle_set_aside",
]
