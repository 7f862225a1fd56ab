"""A failure that was logged reaches the client as the error that it was."""

from apps.api.error_rendering import error_headers, error_object, logged_error
from headrace_wire.messages import StreamError


def test_a_logged_refusal_names_the_field() -> None:
    error = logged_error(StreamError("invalid_request_error", "min_tokens must be less.", "min_tokens"))
    assert error_object(error) == {
        "message": "min_tokens must be less.",
        "type": "invalid_request_error",
        "param": "min_tokens",
        "code": "invalid_request_error",
    }


def test_a_logged_overload_says_when_to_try_again() -> None:
    error = logged_error(StreamError("server_overloaded", "No worker was free.", None, 5.0))
    assert error.http_status == 503
    assert dict(error_headers(error))[b"retry-after"] == b"5"


def test_an_entry_of_an_older_release_has_neither() -> None:
    error = logged_error(StreamError("timeout", "Too slow."))
    assert (error.param, error.retry_after_seconds) == (None, None)
