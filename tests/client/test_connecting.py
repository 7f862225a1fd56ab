"""Addresses, and what a failure to connect means."""

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidMessage, InvalidStatus, InvalidUpgrade
from websockets.http11 import Response

from headrace_client.connecting import Address, loss_of, websocket_url
from headrace_client.errors import ConnectionRejectedError


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://ai.example.org", "wss://ai.example.org/v1/ws"),
        ("http://127.0.0.1:8000/", "ws://127.0.0.1:8000/v1/ws"),
        ("https://ai.example.org/v1", "wss://ai.example.org/v1/ws"),
        ("wss://ai.example.org/inner/v1/ws", "wss://ai.example.org/inner/v1/ws"),
    ],
)
def test_addresses(base_url: str, url: str) -> None:
    assert websocket_url(base_url) == url


@pytest.mark.parametrize("base_url", ["ai.example.org", "ftp://ai.example.org", "https://", ""])
def test_what_is_no_address(base_url: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        websocket_url(base_url)


def test_the_key_is_in_no_repr() -> None:
    assert "sk-hr" not in repr(Address("wss://ai.example.org/v1/ws", "sk-hr-secret"))


def status(code: int, **headers: str) -> InvalidStatus:
    return InvalidStatus(
        Response(code, "", Headers({name.replace("_", "-"): value for name, value in headers.items()}))
    )


def test_what_passes_is_tried_again_and_what_does_not_is_not() -> None:
    assert loss_of(status(503, Retry_After="5")).retry_after_seconds == 5
    assert loss_of(status(429, Retry_After="soon")).retry_after_seconds == 0
    assert loss_of(InvalidMessage("closed")).close_code is None
    assert loss_of(ConnectionRefusedError(111, "refused")).reason
    for error in (status(404), status(403), InvalidUpgrade("Upgrade", "h2c")):
        with pytest.raises(ConnectionRejectedError):
            loss_of(error)
