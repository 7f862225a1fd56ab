"""What requests say about kept answers: `cache`, as LiteLLM's users know it, and the header `Cache-Control`."""

import msgspec
from msgspec import Struct

from apps.streams.services import CacheControls
from headrace_wire.errors import InvalidRequestError

MOST_SECONDS = 365 * 24 * 3600


class CacheField(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body's `cache`. A word that is none of these is refused: whoever mistypes `no-store` would have it kept."""

    no_cache: bool = msgspec.field(default=False, name="no-cache")
    no_store: bool = msgspec.field(default=False, name="no-store")
    use_cache: bool = msgspec.field(default=False, name="use-cache")
    semantic: bool = True
    """Whether the answer to another question that asks for the same will do."""
    ttl: float | None = None
    """Seconds that the answer may be kept."""
    max_age: float | None = msgspec.field(default=None, name="max-age")
    """Greatest age of an answer that is taken, in seconds."""
    s_maxage: float | None = msgspec.field(default=None, name="s-maxage")
    """The same, in LiteLLM's words."""


def cache_controls(field: CacheField | None, header: str | None, user: str | None) -> CacheControls:
    """Return what field and header ask for together; where both name an age, the smaller one counts.

    `user` is the end user that the request names: then its answer is nobody else's.

    Raises:
        InvalidRequestError: a number that is none, or is out of range.
    """
    if field is None and header is None and not user:
        return _NOTHING
    field = field or CacheField()
    for name, value in (("ttl", field.ttl), ("max-age", field.max_age), ("s-maxage", field.s_maxage)):
        if value is not None and not 0 <= value <= MOST_SECONDS:
            raise InvalidRequestError(
                f"`cache.{name}` is a number of seconds from 0 to {MOST_SECONDS}.", param=f"cache.{name}"
            )
    words = _directives(header)
    ages = [age for age in (field.max_age, field.s_maxage, _header_age(words)) if age is not None]
    return CacheControls(
        no_cache=field.no_cache or "no-cache" in words,
        no_store=field.no_store or "no-store" in words,
        use_cache=field.use_cache,
        semantic=field.semantic,
        max_age_seconds=min(ages, default=None),
        ttl_seconds=field.ttl,
        is_personal=bool(user),
    )


_NOTHING = CacheControls()


def _directives(header: str | None) -> dict[str, str]:
    """Return the header's directives; unknown ones have no meaning (RFC 9111, 5.2.3)."""
    pairs = [part.strip().lower().partition("=") for part in (header or "").split(",")]
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs if name}


def _header_age(words: dict[str, str]) -> float | None:
    text = words.get("max-age")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidRequestError("`Cache-Control: max-age` is a whole number of seconds.", param="Cache-Control")
    return min(float(text), MOST_SECONDS)
