"""API keys on the wire: `sk-hr-<public id>-<secret>`, how one is made, read, compared and hidden.

The secret has 238 bits of entropy, so one SHA-256 is a sound stored form: there is nothing to guess that a slow hash
would slow down. Only the public id may appear in a log, an error or an audit row.
"""

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

PREFIX = "sk-hr"
PUBLIC_ID_LENGTH = 12
SECRET_LENGTH = 40

_PUBLIC_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_ALPHABET = string.ascii_letters + string.digits
_TOKEN = re.compile(rf"{PREFIX}-([a-z0-9]{{{PUBLIC_ID_LENGTH}}})-([A-Za-z0-9]{{{SECRET_LENGTH}}})", re.ASCII)
_TRACE = re.compile(rf"({PREFIX}-[a-z0-9]{{{PUBLIC_ID_LENGTH}}})-[A-Za-z0-9]+", re.ASCII)


class ApiKeyScope(StrEnum):
    """What a key may be used for."""

    INFERENCE = "inference"
    """Generate, and read, cancel and resume the streams of its tenant."""
    MODELS = "models"
    """List the models it could use."""
    USAGE = "usage"
    """Read its tenant's usage."""


@dataclass(frozen=True, slots=True)
class ApiKeyToken:
    """A whole key in memory; its `repr` leaves the secret out."""

    public_id: str
    secret: str

    @classmethod
    def generate(cls) -> Self:
        """Returns a new random key."""
        return cls(
            public_id="".join(secrets.choice(_PUBLIC_ALPHABET) for _ in range(PUBLIC_ID_LENGTH)),
            secret="".join(secrets.choice(_SECRET_ALPHABET) for _ in range(SECRET_LENGTH)),
        )

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns the key in `text`, or None where it has not exactly the form of one."""
        match = _TOKEN.fullmatch(text)
        return cls(public_id=match[1], secret=match[2]) if match else None

    @property
    def secret_sha256(self) -> bytes:
        """The 32 bytes that are stored in place of the secret."""
        return hashlib.sha256(self.secret.encode()).digest()

    def matches(self, secret_sha256: bytes) -> bool:
        """Compares with a stored digest in constant time."""
        return hmac.compare_digest(self.secret_sha256, secret_sha256)

    def reveal(self) -> str:
        """Returns the full key, for the one moment it is shown to its owner."""
        return f"{PREFIX}-{self.public_id}-{self.secret}"

    def __repr__(self) -> str:
        """Names the key by its public id."""
        return f"ApiKeyToken({PREFIX}-{self.public_id}-…)"

    __str__ = __repr__


def redact(text: str) -> str:
    """Cuts the secret out of every key in `text`; the public id stays."""
    return _TRACE.sub(r"\1-…", text)
