"""What the server answers itself, before the application: one complete HTTP response, after which it closes."""

from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec

from headrace_wire.errors import DrainingError, InvalidRequestError, PayloadTooLargeError, ServerOverloadedError

API_PREFIX = b"/v1/"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Status, error code (CONVENTIONS, "OpenAI HTTP") and text of an answer that the server gives itself."""

    status: int
    code: str
    message: str
    type: str = "invalid_request_error"
    headers: dict[str, str] = field(default_factory=dict)

    def response(self, path: bytes) -> bytes:
        """Returns the whole response: an OpenAI-style error on the API and where no path was read, else plain text."""
        if path.startswith(API_PREFIX) or not path.startswith(b"/"):
            error = {"message": self.message, "type": self.type, "param": None, "code": self.code}
            content_type, body = "application/json", msgspec.json.encode({"error": error})
        else:
            content_type, body = "text/plain; charset=utf-8", f"{self.message}\n".encode()
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "Connection": "close",
            **self.headers,
        }
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def body_too_large(limit: int) -> Refusal:
    """The body is over `limit` bytes."""
    return Refusal(413, PayloadTooLargeError.code, f"The request body is larger than {limit} bytes.")


BAD_REQUEST = Refusal(400, InvalidRequestError.code, "This is not a well-formed HTTP/1.1 request.")
HEAD_TOO_LARGE = Refusal(431, "headers_too_large", "The request line and the headers are too large.")
HEAD_TIMEOUT = Refusal(408, "request_timeout", "The head of the request did not arrive in time.")
BODY_TIMEOUT = Refusal(408, "request_timeout", "The body of the request did not arrive in time.")
APPLICATION_FAILED = Refusal(500, "internal_error", "The server failed to answer this request.", "server_error")
DRAINING = Refusal(
    503, DrainingError.code, "This server is shutting down; another one answers.", "server_error", {"Retry-After": "1"}
)
TOO_MANY_CONNECTIONS = Refusal(
    503, ServerOverloadedError.code, "Too many open connections.", "server_error", {"Retry-After": "5"}
)
