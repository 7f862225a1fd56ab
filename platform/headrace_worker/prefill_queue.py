"""Prefixes that are to be computed when there is time: few, each once, and those that a user waits for go first."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from headrace_wire import codec
from headrace_wire.messages import Prefill, PrefillPurpose
from headrace_wire.prefill_reports import PrefillOutcome

MOST = 64
"""Prefills that wait at one worker; one more is dropped."""
MOST_PER_TENANT = 16

_ORDER = {PrefillPurpose.DRAFT: 0, PrefillPurpose.PROMPT_CACHE: 1}


class Prefix:
    """A prefill, and how far it has come."""

    __slots__ = ("cached", "computed", "done", "ids", "is_begun", "prefill", "seconds")

    def __init__(self, prefill: Prefill) -> None:
        self.prefill = prefill
        self.ids: Sequence[int] = codec.unpack_token_ids(prefill.prompt_ids)
        self.is_begun = False
        self.done = 0
        """Tokens that have been computed, or found."""
        self.cached = 0
        self.computed = 0
        self.seconds = 0.0

    def advance(self, up_to: int, *, cached: int, seconds: float) -> None:
        """Note that the engine has it up to a position, and how much of the prompt it had before."""
        found = min(max(cached - self.done, 0), up_to - self.done)
        self.cached += found
        self.computed += up_to - self.done - found
        self.seconds += seconds
        self.done = up_to


class PrefillQueue:
    """Bounded, per worker and per tenant. `dropped` is told of each prefill that is taken out undone."""

    def __init__(self, dropped: Callable[[Prefix, PrefillOutcome], None]) -> None:
        self._dropped = dropped
        self._waiting: dict[str, Prefix] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, prefill: Prefill) -> None:
        """Queue a prefill. One under an id that waits already takes its place."""
        prefix = Prefix(prefill)
        self.drop(prefill.prefill_id, PrefillOutcome.CANCELLED)
        tenants = Counter(other.prefill.tenant_id for other in self._waiting.values())
        if any(_is_same(prefill, other.prefill) for other in self._waiting.values()):
            self._dropped(prefix, PrefillOutcome.DUPLICATE)
        elif len(self._waiting) >= MOST or tenants[prefill.tenant_id] >= MOST_PER_TENANT:
            self._dropped(prefix, PrefillOutcome.FULL)
        else:
            self._waiting[prefill.prefill_id] = prefix

    def drop(self, prefill_id: str, outcome: PrefillOutcome) -> None:
        """Take a prefill out; an unknown one is fine."""
        prefix = self._waiting.pop(prefill_id, None)
        if prefix is not None:
            self._dropped(prefix, outcome)

    def drop_all(self, outcome: PrefillOutcome) -> None:
        """Take all of them out."""
        for prefill_id in list(self._waiting):
            self.drop(prefill_id, outcome)

    def first(self) -> Prefix | None:
        """Return the next one, which stays in until it is taken; those that were not begun in time are dropped."""
        now_ms = time.time() * 1000
        for prefill_id, prefix in list(self._waiting.items()):
            if not prefix.is_begun and prefix.prefill.expires_at_ms < now_ms:
                self.drop(prefill_id, PrefillOutcome.EXPIRED)
        return min(self._waiting.values(), key=lambda prefix: _ORDER[prefix.prefill.purpose], default=None)

    def take(self, prefix: Prefix) -> bool:
        """Take out one that is done; False where it was dropped meanwhile."""
        if self._waiting.get(prefix.prefill.prefill_id) is not prefix:
            return False
        del self._waiting[prefix.prefill.prefill_id]
        return True

    def holds(self, prefix: Prefix) -> bool:
        """Say whether it was not dropped meanwhile."""
        return self._waiting.get(prefix.prefill.prefill_id) is prefix


def _is_same(one: Prefill, other: Prefill) -> bool:
    return one.cache_salt == other.cache_salt and one.prompt_ids == other.prompt_ids
