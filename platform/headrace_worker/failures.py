"""What readers are told of streams that failed, by reason; the codes are those of the error tree."""

from headrace_wire.messages import StreamError

LATE = StreamError("server_overloaded", "No worker was free before the queue deadline; try again later.", None, 5.0)
ENGINE_LOST = StreamError("engine_error", "The engine failed; what was sent stands, the rest is missing.")
ENGINE_GAVE_UP = StreamError("engine_error", "The engine gave this request up.")
UNANSWERABLE = StreamError(
    "invalid_request_error",
    "The engine could not go on under `response_format`: its schema admits no text, or none after what was sent.",
    "response_format",
)
STALLED = StreamError("timeout", "The engine gave no token within the deployment's deadline.")
DRAINED = StreamError("engine_error", "The worker was shut down before the answer was complete.")
INTERNAL = StreamError("internal_error", "The worker failed on this request.")
UNREADABLE = StreamError("engine_error", "What was logged of this answer cannot be continued; what was sent stands.")
UNREADABLE_REQUEST = StreamError(
    "internal_error", "The worker cannot read this request, which another release of the service wrote; send it again."
)
UNGUARDED = StreamError(
    "guardrail_unavailable",
    "The guardrails of this request are not known here, so nothing may be generated.",
    None,
    5.0,
)
NOT_JUDGED = StreamError(
    "guardrail_unavailable",
    "A guardrail could not judge this answer in time, and lets nothing pass unjudged; try again later.",
    None,
    5.0,
)
BLOCKED_INPUT = StreamError("content_filter", "Your request was blocked by a guardrail of this service.")
