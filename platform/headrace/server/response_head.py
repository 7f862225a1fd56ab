"""The head of a response: Twisted's headers, filled by two calls for each one where it takes a dozen."""

from collections.abc import Iterable
from functools import lru_cache

from twisted.web.http_headers import Headers


@lru_cache(maxsize=256)
def _canonical(name: bytes) -> bytes:
    """Returns a header's name as Twisted writes it.

    Raises:
        InvalidHeaderName: It cannot be one.
    """
    headers = Headers()
    headers.addRawHeader(name, b"")
    return bytes(next(headers.getAllRawHeaders())[0])


class ResponseHeaders(Headers):  # type: ignore[misc]  # Twisted ships no types
    """The headers of one response."""

    __slots__ = ()

    def add_all(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Adds headers as `addRawHeader` does. Only a value with line breaks, which become spaces, needs all that."""
        known = self._rawHeaders
        for name, value in headers:
            if b"\n" in value or b"\r" in value:
                self.addRawHeader(name, value)
            else:
                known.setdefault(_canonical(name), []).append(value)
