"""How many connections one tenant, and one signed-in user, may have open at one gateway."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from apps.streams import metrics
from apps.streams.config_view import Caller
from headrace_wire.errors import RateLimitError

DEFAULT_PER_USER = 64
"""Tabs and devices of one person; an API key is bounded by its tenant's limit alone."""

RETRY_SECONDS = 5.0


class ConnectionLimit:
    """Counts WebSockets and requests that are being served, so that no tenant takes all of a gateway."""

    def __init__(self, per_user: int = DEFAULT_PER_USER) -> None:
        self._per_user = per_user
        self._open: Counter[str] = Counter()

    def enter(self, caller: Caller) -> None:
        """Take a place.

        Raises:
            RateLimitError: the tenant, or the user, has as many as it may.
        """
        for name, limit, whose in self._places(caller):
            if self._open[name] >= limit:
                metrics.CONNECTIONS_REFUSED.inc()
                raise RateLimitError(
                    f"{whose} has {limit} connections open here, its limit; close one first.",
                    retry_after_seconds=RETRY_SECONDS,
                )
        self._open.update(name for name, _, _ in self._places(caller))

    def leave(self, caller: Caller) -> None:
        """Give a place back."""
        for name, _, _ in self._places(caller):
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]

    @contextmanager
    def held(self, caller: Caller) -> Iterator[None]:
        """Have a place for the length of a `with`; see `enter`."""
        self.enter(caller)
        try:
            yield
        finally:
            self.leave(caller)

    def _places(self, caller: Caller) -> list[tuple[str, int, str]]:
        """Return what the caller's connection counts for: a name, its limit, and how to call it."""
        tenant = caller.tenant
        places = [(tenant.id, tenant.max_connections, "This tenant")]
        if caller.api_key is None and caller.user_id is not None:
            places.append((f"{tenant.id}/{caller.user_id}", self._per_user, "This user"))
        return places
