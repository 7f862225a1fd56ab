"""What can go wrong, one class per error code of the server (`docs/clients.md` lists them)."""


class HeadraceError(Exception):
    """Base of all errors of this package; by itself, a code that this version of the client does not know."""

    code: str = "internal_error"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, stream_id: str | None = None
    ) -> None:
        """`param` names the field that was wrong; `stream_id` the stream, where it is known."""
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param
        self.stream_id = stream_id


class RequestError(HeadraceError):
    """The request cannot be served as it is."""


class InvalidRequestError(RequestError):
    """Malformed, a wrong type, missing or contradicting fields."""

    code = "invalid_request_error"


class ContextLengthError(RequestError):
    """Prompt and answer do not fit the model's context."""

    code = "context_length_exceeded"


class ContentFilterError(RequestError):
    """A guardrail blocks the request."""

    code = "content_filter"


class InvalidApiKeyError(RequestError):
    """No key, an unknown, expired or revoked one."""

    code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    """The key is good and may not do this."""

    code = "permission_denied"


class ModelNotFoundError(RequestError):
    """There is no such model for this tenant."""

    code = "model_not_found"


class StreamNotFoundError(RequestError):
    """There is no such stream of this tenant."""

    code = "stream_not_found"


class StreamGoneError(RequestError):
    """The stream's log has expired."""

    code = "stream_expired"


class LogRolledBackError(RequestError):
    """The stream ended before the position that was asked for: the server lost its last second."""

    code = "log_rolled_back"


class StreamCancelledError(RequestError):
    """The stream was cancelled by somebody else."""

    code = "stream_cancelled"


class PayloadTooLargeError(RequestError):
    """The request is larger than the server takes."""

    code = "payload_too_large"


class RateLimitError(RequestError):
    """Too many requests or tokens for now."""

    code = "rate_limit_exceeded"


class InsufficientQuotaError(RequestError):
    """A budget is used up until its period ends."""

    code = "insufficient_quota"


class ServerError(HeadraceError):
    """The server failed; the same request may work later."""


class ServerOverloadedError(ServerError):
    """The queue is full, or nobody took the request in time."""

    code = "server_overloaded"


class DrainingError(ServerError):
    """This gateway shuts down. The client tries another connection before it raises this."""

    code = "draining"


class DeadlineExceededError(ServerError):
    """The engine did not answer in time."""

    code = "timeout"


class EngineError(ServerError):
    """The engine or its worker failed in mid-stream."""

    code = "engine_error"


class DependencyUnavailableError(ServerError):
    """A part that the server depends on does not answer."""

    code = "dependency_unavailable"


class GuardrailUnavailableError(ServerError):
    """A guardrail could not judge in time, and lets nothing pass unjudged."""

    code = "guardrail_unavailable"


class ConnectionLostError(HeadraceError):
    """The server could not be reached for as long as the client tries. `follow` goes on with the stream later."""

    code = "connection_lost"

    def __init__(self, message: str, *, stream_id: str | None = None, seq: int = 0) -> None:
        """`seq` is the last position that came."""
        super().__init__(message, stream_id=stream_id)
        self.seq = seq


class ConnectionRejectedError(HeadraceError):
    """What answers at the address does not speak headrace.v1, or its certificate is not trusted."""

    code = "connection_rejected"


class StartUnknownError(HeadraceError):
    """The connection broke after `generate` was sent and before an answer: the stream may run, or not.

    It is never sent again by itself, since that could start a second generation.
    """

    code = "start_unknown"


class ProtocolError(HeadraceError):
    """The server said something that is not headrace.v1."""

    code = "protocol_error"


class SequenceError(ProtocolError):
    """Positions came out of order, twice or with a hole: what came so far is right, what follows cannot be trusted."""

    code = "sequence_error"


class ClientClosedError(HeadraceError):
    """The client was closed."""

    code = "client_closed"


def _leaves(cls: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _leaves(child))]


_BY_CODE = {cls.code: cls for root in (RequestError, ServerError) for cls in _leaves(root) if "code" in vars(cls)}
_BY_CLOSE_CODE: dict[int, type[HeadraceError]] = {
    1009: PayloadTooLargeError,
    4400: InvalidRequestError,
    4401: InvalidApiKeyError,
    4403: PermissionDeniedError,
    4404: StreamNotFoundError,
    4409: StreamCancelledError,
    4410: StreamGoneError,
    4429: RateLimitError,
}


def error_from_code(
    code: str, message: str, *, param: str | None = None, stream_id: str | None = None
) -> HeadraceError:
    """Return the error that the server reported."""
    return _BY_CODE.get(code, HeadraceError)(message, code=code, param=param, stream_id=stream_id)


def error_from_close(close_code: int, reason: str, *, stream_id: str | None = None) -> HeadraceError:
    """Return the error that a final close code stands for."""
    cls = _BY_CLOSE_CODE.get(close_code, ProtocolError)
    return cls(f"The server closed the connection: {close_code} {reason}".rstrip(), stream_id=stream_id)
