"""Texts that the database keeps and must not tell: encrypted with a key that is made from `SECRET_KEY`.

Whoever has a copy of the database alone reads nothing. After `SECRET_KEY` was changed, old ones can be read as long as
it is in `SECRET_KEY_FALLBACKS`.
"""

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.utils.encoding import force_bytes

_PURPOSE = b"headrace.sealed_text:"


class UnreadableTextError(Exception):
    """It was sealed with another `SECRET_KEY`."""


def seal(text: str) -> str:
    """Returns the text as it may be stored; another one each time."""
    return _keys().encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """Returns what was sealed.

    Raises:
        UnreadableTextError: None of our keys opens it.
    """
    try:
        return _keys().decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise UnreadableTextError("sealed with another SECRET_KEY") from error


def _keys() -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    digests = [hashlib.sha256(_PURPOSE + force_bytes(key)).digest() for key in keys]
    return MultiFernet([Fernet(base64.urlsafe_b64encode(digest)) for digest in digests])
