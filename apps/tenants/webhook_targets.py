"""Where events are posted, and with what they are signed: the same for tenants' notices and for operators' alerts."""

import base64
import secrets
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import URLValidator
from django.utils.translation import gettext as _

from apps.tenants.outside_address import InsideAddressError, outside_addresses

WEBHOOK_SECRET_PREFIX = "whsec_"  # noqa: S105  # says what follows, is none


_WEB = URLValidator(schemes=["http", "https"])


def webhook_secret_new() -> str:
    """Returns a secret in the form of Standard Webhooks (standardwebhooks.com)."""
    return WEBHOOK_SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def webhook_address_check(url: str, *, field: str) -> None:
    """Asks for an address of the web, whole and with a port that there is. Looks no name up.

    Raises:
        ValidationError: It is none; `field` is where the form says so.
    """
    if not url:
        raise ValidationError({field: _("A webhook needs the address that it is posted to.")}, code="address")
    try:
        _WEB(url)
    except ValidationError as error:
        told = _("“%s” is no address of the web. Write one that begins with https:// or http://.") % url
        raise ValidationError({field: told}, code="address") from error
    webhook_port_check(url, field=field)


def webhook_port_check(url: str, *, field: str) -> None:
    """Refuses ports that no machine has, which Django takes where they have five digits.

    Raises:
        ValidationError: There is no such port.
    """
    try:
        is_known = urlsplit(url).port != 0
    except ValueError:
        is_known = False
    if not is_known:
        raise ValidationError({field: _("There is no such port; ports are from 1 to 65535.")}, code="port")


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
