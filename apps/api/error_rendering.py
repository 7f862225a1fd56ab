"""The one place where errors become what a client sees: OpenAI's error body, on any transport."""

import math

import msgspec

from headrace_wire.admission import Rates
from headrace_wire.errors import HeadraceError, error_from_code
from headrace_wire.messages import StreamError

MAX_RETRY_AFTER_SECONDS = 120
"""The OpenAI SDKs give up on a longer delay (CONVENTIONS)."""


def error_object(error: HeadraceError) -> dict[str, str | None]:
    """Return `{message, type, param, code}`."""
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def error_body(error: HeadraceError) -> bytes:
    """Return the JSON error body."""
    return msgspec.json.encode({"error": error_object(error)})


def error_headers(error: HeadraceError) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell an SDK whether and when to try again."""
    headers = []
    if error.retry_after_seconds is not None:
        seconds = min(MAX_RETRY_AFTER_SECONDS, max(1, math.ceil(error.retry_after_seconds)))
        headers.append((b"retry-after", str(seconds).encode()))
    if error.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
    return headers + (rate_headers(error.rates) if error.rates is not None else [])


def rate_headers(rates: Rates) -> list[tuple[bytes, bytes]]:
    """Return OpenAI's `x-ratelimit-*` headers, of the tightest limit of each kind; none where nothing is limited."""
    headers = []
    for unit, rate in (("requests", rates.requests), ("tokens", rates.tokens)):
        if rate is not None:
            values = {"limit": str(rate.limit), "remaining": str(rate.remaining), "reset": _span(rate.reset_seconds)}
            headers += [(f"x-ratelimit-{name}-{unit}".encode(), value.encode()) for name, value in values.items()]
    return headers


def _span(seconds: float) -> str:
    """Write a duration as OpenAI does: 12ms, 1s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def logged_error(error: StreamError) -> HeadraceError:
    """Rebuild the error that a terminal log entry carries."""
    return error_from_code(error.code, error.message, param=error.param, retry_after_seconds=error.retry_after_seconds)
