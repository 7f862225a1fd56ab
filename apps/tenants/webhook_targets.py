"""Where events are posted, and with what they are signed: the same for tenants' notices and for operators' alerts."""

import base64
import secrets
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError

from apps.tenants.outside_address import InsideAddressError, outside_addresses

WEBHOOK_SECRET_PREFIX = "whsec_"  # noqa: S105  # says what follows, is none


def webhook_secret_new() -> str:
    """Returns a secret in the form of Standard Webhooks (standardwebhooks.com)."""
    return WEBHOOK_SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def webhook_url_check(url: str, *, field: str) -> None:
    """An internal address is refused where it is given; where a name leads to is looked at again with every post.

    Raises:
        ValidationError: It leads inside; `field` is where the form says so.
    """
    host = urlsplit(url).hostname if url else None
    if host is None or settings.HEADRACE_WEBHOOK_INTERNAL:
        return
    try:
        outside_addresses(host, 443)
    except InsideAddressError as error:
        raise ValidationError({field: str(error)}, code="internal_address") from error
    except OSError:
        return  # not known today
