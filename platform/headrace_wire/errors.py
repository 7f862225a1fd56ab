"""The error tree. Each class has one code; the edges (HTTP, SSE, WebSocket) render it in one place.

Codes, types and statuses follow the OpenAI error table in CONVENTIONS; WebSocket close codes are 4400-4499 for the
client's mistakes, 1012/1013 for ours.
"""

from typing import ClassVar

from headrace_wire.admission import Rates


class HeadraceError(Exception):
    """Base of all errors that a client may see. `str(error)` is the message for the client and never holds a secret."""

    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    http_status: ClassVar[int] = 500
    ws_close_code: ClassVar[int] = 1011
    should_retry: ClassVar[bool | None] = None
    """`x-should-retry` of the OpenAI SDKs; None leaves the decision to the SDK."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.rates: Rates | None = None
        """What is left of the caller's rate limits, where admission has looked at them."""


class ClientError(HeadraceError):
    """The request cannot be served as it is; sending it again unchanged does not help (rate limits apart)."""

    code = "invalid_request_error"
    type = "invalid_request_error"
    http_status = 400
    ws_close_code = 4400


class InvalidRequestError(ClientError):
    """Malformed JSON, wrong type, missing or contradicting fields; `param` names the field."""


class ContextLengthError(ClientError):
    """Prompt and answer do not fit the model's context."""

    code = "context_length_exceeded"


class InvalidApiKeyError(ClientError):
    """No key, an unknown, expired or revoked one. All four read the same to the caller."""

    code = "invalid_api_key"
    http_status = 401
    ws_close_code = 4401


class PermissionDeniedError(ClientError):
    """The key is good and may not do this."""

    code = "permission_denied"
    type = "permission_error"
    http_status = 403
    ws_close_code = 4403


class ModelNotFoundError(ClientError):
    """No deployment of this name is visible to the tenant."""

    code = "model_not_found"
    http_status = 404
    ws_close_code = 4404


class StreamNotFoundError(ClientError):
    """The stream does not exist or is another tenant's; the two read the same."""

    code = "stream_not_found"
    http_status = 404
    ws_close_code = 4404


class NotFoundError(ClientError):
    """No such route."""

    code = "not_found"
    http_status = 404
    ws_close_code = 4404


class MethodNotAllowedError(ClientError):
    """The route exists and does not take this method."""

    code = "method_not_allowed"
    http_status = 405


class StreamGoneError(ClientError):
    """The stream's log has expired."""

    code = "stream_expired"
    http_status = 410
    ws_close_code = 4410


class LogRolledBackError(ClientError):
    """The cursor lies beyond the stream's end: Redis lost its last second, and with it what the client has seen."""

    code = "log_rolled_back"
    http_status = 410
    ws_close_code = 4410


class StreamCancelledError(ClientError):
    """The stream was cancelled by somebody else than the reader who sees this."""

    code = "stream_cancelled"
    http_status = 409
    ws_close_code = 4409
    should_retry = False


class ContentFilterError(ClientError):
    """A guardrail blocks the request."""

    code = "content_filter"
    should_retry = False


class IdempotencyMismatchError(ClientError):
    """An `Idempotency-Key` came again with another body."""

    code = "idempotency_key_reused"
    http_status = 422
    should_retry = False


class PayloadTooLargeError(ClientError):
    """The body is over the cap."""

    code = "payload_too_large"
    http_status = 413
    ws_close_code = 1009


class RateLimitError(ClientError):
    """Too many requests or tokens in the window; `retry_after_seconds` comes from real state."""

    code = "rate_limit_exceeded"
    type = "rate_limit_error"
    http_status = 429
    ws_close_code = 4429


class RequestTooLargeError(RateLimitError):
    """The request needs more tokens than the limit gives in a whole minute: to wait does not help."""

    should_retry = False


class InsufficientQuotaError(ClientError):
    """A budget is used up until its period ends."""

    code = "insufficient_quota"
    type = "insufficient_quota"
    http_status = 429
    ws_close_code = 4429
    should_retry = False


class ServerError(HeadraceError):
    """We failed; the same request may work later."""


class GuardrailUnavailableError(ServerError):
    """A guardrail cannot be read, or did not judge in time; nothing passes unjudged."""

    code = "guardrail_unavailable"
    http_status = 503
    ws_close_code = 1013


class ServerOverloadedError(ServerError):
    """The queue is full or nobody took the request before its deadline."""

    code = "server_overloaded"
    http_status = 503
    ws_close_code = 1013


class DrainingError(ServerError):
    """This gateway takes no new streams; another one does."""

    code = "draining"
    http_status = 503
    ws_close_code = 1012


class DeadlineExceededError(ServerError):
    """The engine did not answer within the deployment's deadline."""

    code = "timeout"
    type = "timeout_error"
    http_status = 504
    ws_close_code = 1013


class EngineError(ServerError):
    """The engine or its worker failed in mid-stream."""

    code = "engine_error"
    http_status = 502


class DependencyUnavailableError(ServerError):
    """Redis does not answer."""

    code = "dependency_unavailable"
    http_status = 503
    ws_close_code = 1013


def _leaves(cls: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _leaves(child))]


_BY_CODE: dict[str, type[HeadraceError]] = {}
for _cls in _leaves(HeadraceError):
    _BY_CODE.setdefault(_cls.code, _cls)


def error_from_code(
    code: str, message: str, *, param: str | None = None, retry_after_seconds: float | None = None
) -> HeadraceError:
    """Rebuild an error that another process reported; an unknown code becomes a plain `ServerError`."""
    return _BY_CODE.get(code, ServerError)(message, param=param, retry_after_seconds=retry_after_seconds)
