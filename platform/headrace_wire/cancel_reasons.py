"""Why streams are cancelled, where that decides what their readers are told."""

from headrace_wire.errors import StreamCancelledError
from headrace_wire.messages import StreamError

BY_OPERATOR = "operator"
"""Somebody who runs the service ended it."""

_TOLD = {
    BY_OPERATOR: StreamError(
        StreamCancelledError.code, "An operator of this service ended the stream; what was sent stands."
    )
}


def told_of_cancel(reason: str) -> StreamError | None:
    """Return what is logged with the end of a stream that was cancelled for `reason`; None: its client knows why."""
    return _TOLD.get(reason)
