"""Which pages may open a WebSocket with a chat ticket: our own, and those that the settings trust."""

from urllib.parse import urlsplit

from django.conf import settings


def is_allowed_origin(origin: bytes | None, host: bytes | None) -> bool:
    """Say whether the page at `origin` may use a ticket on `host`; without an origin it may not (browsers send one)."""
    if not origin or not host:
        return False
    text = origin.decode("latin-1")
    return urlsplit(text).netloc == host.decode("latin-1") or text in settings.CSRF_TRUSTED_ORIGINS
