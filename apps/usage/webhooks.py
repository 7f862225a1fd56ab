"""Posts to a webhook, signed by Standard Webhooks (standardwebhooks.com), which OpenAI's clients can verify.

The address is given by operators, not by tenants, and must lie outside unless `HEADRACE_WEBHOOK_INTERNAL` says
otherwise. It is looked at after its name was looked up, and connected to as it was looked at, past no proxy. Redirects
are not followed: what was signed for one address is not sent to another.
"""

import base64
import hashlib
import hmac
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

import msgspec
from django.utils import timezone

from apps.tenants.outside_address import outside_addresses
from apps.tenants.sealed_text import UnreadableTextError, unseal
from apps.tenants.webhook_targets import WEBHOOK_SECRET_PREFIX

TIMEOUT_SECONDS = 10.0


class WebhookError(Exception):
    """The receiver did not take it; the message says why, without the receiver's own words."""


class UnsignableError(WebhookError):
    """What is posted cannot be signed any more, today or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What is told; the id is the same for every try, so that a receiver can tell."""

    id: str
    type: str
    created_at: datetime
    data: Mapping[str, object]

    def body(self) -> bytes:
        """Returns it as it is posted."""
        return msgspec.json.encode(
            {
                "id": self.id,
                "object": "event",
                "type": self.type,
                "created_at": int(self.created_at.timestamp()),
                "data": self.data,
            }
        )


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **_options: Any) -> None:  # noqa: ANN401
        return None


def _connect(address: tuple[str, int], timeout: float | None = None, source: Any = None) -> socket.socket:  # noqa: ANN401
    """Connects to what was looked at: a name that is looked up again might lead elsewhere."""
    host, port = address
    error: OSError | None = None
    for found in outside_addresses(host, port):
        try:
            return socket.create_connection((found, port), timeout, source)
        except OSError as failed:
            error = failed
    raise error or OSError(f"{host} has no address")


class _Plain(HTTPConnection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._create_connection = _connect


class _Secure(HTTPSConnection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._create_connection = _connect


class _PlainHandler(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Plain, req)


class _SecureHandler(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Secure, req)


_opener = build_opener(_NoRedirects, _PlainHandler, _SecureHandler, ProxyHandler({}))


def webhook_headers(*, secret: str, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Returns the headers of one try."""
    key = base64.b64decode(secret.removeprefix(WEBHOOK_SECRET_PREFIX))
    signed = f"{event_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "content-type": "application/json",
        "user-agent": "Headrace",
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }


def event_post(event: Event, *, url: str, sealed_secret: str) -> None:
    """Signs an event with a secret that the database keeps sealed, and posts it.

    Raises:
        UnsignableError: The secret cannot be read any more.
        WebhookError: The receiver did not take it.
    """
    try:
        secret = unseal(sealed_secret)
    except UnreadableTextError as error:
        raise UnsignableError("The webhook's secret cannot be read any more: SECRET_KEY was changed.") from error
    body, timestamp = event.body(), int(timezone.now().timestamp())
    headers = webhook_headers(secret=secret, event_id=event.id, timestamp=timestamp, body=body)
    webhook_post(url=url, headers=headers, body=body)


def webhook_post(*, url: str, headers: dict[str, str], body: bytes) -> None:
    """Posts, and returns once the receiver has answered with 2xx.

    Raises:
        WebhookError: It did not.
    """
    if not url.startswith(("http://", "https://")):
        raise WebhookError("not an HTTP address")
    request = Request(url, data=body, headers=headers, method="POST")  # noqa: S310  # checked above
    try:
        with _opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            status = int(answer.status)
    except HTTPError as error:
        with error:
            status = error.code
    except (OSError, ValueError, HTTPException) as error:  # not reached, timed out, no TLS, or no HTTP
        raise WebhookError(str(error)[:300]) from error
    if not 200 <= status < 300:
        raise WebhookError(f"answered with {status}")
