"""How many streams a worker takes: places for everybody, and a few spare ones for tenants that have none running."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sized

from headrace_worker.generation import Generation

SLOTS_PER_SPARE, MOST_SPARE = 4, 8
"""The engine has a spare place for each so many, for tenants that have no stream running here, or few. One at least; of
many places one is free soon anyway."""

LIVE_PER_SLOT = 8
"""Streams, held ones included, for each that runs: beyond these the longest-held are suspended."""


class Places:
    """Those of one worker, by what its engine runs at once. Belongs to one event loop."""

    def __init__(self, live: Mapping[str, Generation], held: Sized) -> None:
        """`live` are all streams that are worked on, `held` those of them that have left their places to others."""
        self._live = live
        self._held = held
        self._engine_slots = 0
        self.batch_max: int | None = None
        """The deployment's bound of concurrent requests, below what the engine could run."""
        self.controlled: int | None = None
        """Likewise, where it moves (`batch_control`)."""
        self.is_closed = False
        """Nothing is claimed, whatever is free."""
        self.changed = asyncio.Event()
        """Set when there may be more room than before, or somebody for a spare place."""

    def attach(self, slots: int) -> None:
        """An engine is there that runs so many at once, spare places apart; 0: there is none any more."""
        self._engine_slots = slots
        if slots:
            self.changed.set()

    @property
    def slots(self) -> int:
        """How many streams run at once, spare places apart; 0 without an engine."""
        most = self._engine_slots
        return min(most, self.batch_max or most, self.controlled or most)

    @property
    def room(self) -> int:
        """How many more streams may be claimed; less than 0 where there are too many."""
        slots = self.slots
        if self.is_closed:
            return 0
        return min(slots - len(self._live) + len(self._held), slots * LIVE_PER_SLOT - len(self._live))

    @property
    def spare(self) -> int:
        """How many more may be claimed beyond `room`, of tenants that have none here, or few."""
        if self.is_closed:
            return 0
        return min(spare_places(self.slots), max(0, self.room + spare_places(self.slots)))

    @property
    def is_quiet(self) -> bool:
        """Whether nobody waits for a first token, and whoever comes next finds a place."""
        return self.room > 0 and not any(one.new_tokens == 0 and not one.is_held for one in self._live.values())

    def tenants(self) -> Mapping[str, int]:
        """Return how many streams run of each tenant that has any."""
        return Counter(one.request.tenant_id for one in self._live.values() if not one.is_held)


def spare_places(slots: int) -> int:
    """Return how many places an engine has beyond those that are for everybody."""
    return min(max(1, slots // SLOTS_PER_SPARE), MOST_SPARE) if slots else 0
