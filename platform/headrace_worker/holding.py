"""Streams out of credit: shown as held, and suspended where they stay so for long or keep too much of the KV cache."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from headrace_wire.continuation import NotExact
from headrace_wire.messages import Inexact, StreamState
from headrace_worker.config import HoldLimits
from headrace_worker.engine import EngineStats
from headrace_worker.generation import Generation

SHOWN_AFTER_SECONDS = 0.25
"""A reader that is only a little behind is not worth a word to Redis at every step of its credit."""

SUSPENSIONS_PER_MINUTE = 3
"""Of one stream. A reader that comes and goes more often keeps its stream held: suspending costs a computed prompt."""

SLOW_CONSUMER = "slow_consumer"
KV_BUDGET = "kv_budget"
TOO_MANY = "too_many_held"


class _Hold:
    __slots__ = ("generation", "is_shown", "not_before", "since")

    def __init__(self, generation: Generation, since: float) -> None:
        self.generation = generation
        self.since = since
        self.is_shown = False
        self.not_before = _not_before(generation)
        """From when on it may be suspended."""

    def suspend_at(self, hold_seconds: float) -> float:
        return math.inf if self.generation.is_leaving else max(self.since + hold_seconds, self.not_before)

    def show_at(self) -> float:
        return math.inf if self.is_shown else self.since + SHOWN_AFTER_SECONDS


class Holds:
    """All held streams of one worker, the longest-held first."""

    def __init__(
        self,
        limits: HoldLimits,
        *,
        show: Callable[[Sequence[tuple[Generation, StreamState]]], None],
        suspend: Callable[[Generation, str], None],
    ) -> None:
        """`show` and `suspend` (with a reason) return at once; a suspended stream stays in here until it is gone."""
        self._limits = limits
        self._hold_seconds = limits.hold_seconds
        self._show = show
        self._suspend = suspend
        self._holds: dict[str, _Hold] = {}
        self._changed = asyncio.Event()
        self.max_held: int | None = None
        """Beyond these, the longest-held are suspended whatever they keep."""

    def __len__(self) -> int:
        return len(self._holds)

    def stream_ids(self) -> list[str]:
        """Return who waits for credit."""
        return [hold.generation.stream_id for hold in self._holds.values() if not hold.generation.is_leaving]

    def add(self, generation: Generation, now: float) -> None:
        """Note that a stream is held."""
        if generation.request_id not in self._holds:
            self._holds[generation.request_id] = _Hold(generation, now)
            self._changed.set()

    def remove(self, generation: Generation) -> None:
        """Note that a stream goes on, or is gone."""
        hold = self._holds.pop(generation.request_id, None)
        if hold is not None and hold.is_shown and generation.ended is None and not generation.is_leaving:
            self._show([(generation, StreamState.RUNNING)])

    def drain(self) -> None:
        """From now on, suspend what is held at once."""
        self._hold_seconds = 0.0
        self._changed.set()

    def resume(self) -> None:
        """Hold streams again for as long as the limits say."""
        self._hold_seconds = self._limits.hold_seconds

    def consider(self, stats: EngineStats) -> None:
        """Suspend the longest-held where they keep too much of the KV cache, for their tenant or in all."""
        now = time.monotonic()
        # Who is being suspended has given its share up, however long that takes: others need not follow it.
        staying = {request_id: hold for request_id, hold in self._holds.items() if not hold.generation.is_leaving}
        kept = {held.request_id: held.kv_cache_usage for held in stats.held if held.request_id in staying}
        by_tenant: defaultdict[str, float] = defaultdict(float)
        for request_id, share in kept.items():
            by_tenant[staying[request_id].generation.request.tenant_id] += share
        total, count = sum(kept.values()), len(staying)
        for request_id, hold in staying.items():
            tenant, share = hold.generation.request.tenant_id, kept.get(request_id, 0.0)
            over = share and (total > self._limits.kv_share or by_tenant[tenant] > self._limits.kv_share_per_tenant)
            crowded = self.max_held is not None and count > self.max_held
            if (over or crowded) and hold.suspend_at(0.0) <= now:
                self._suspend(hold.generation, KV_BUDGET if over else TOO_MANY)
                total, count = total - share, count - 1
                by_tenant[tenant] -= share

    async def run(self) -> None:
        """Show and suspend when their time comes, until cancelled."""
        while True:
            self._changed.clear()
            self._act(time.monotonic())
            holds = self._holds.values()
            due = min((min(hold.show_at(), hold.suspend_at(self._hold_seconds)) for hold in holds), default=math.inf)
            try:
                async with asyncio.timeout(None if math.isinf(due) else due - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _act(self, now: float) -> None:
        fresh = [hold for hold in self._holds.values() if hold.show_at() <= now]
        for hold in fresh:
            hold.is_shown = True
        if fresh:
            self._show([(hold.generation, StreamState.HELD) for hold in fresh])
        for hold in [hold for hold in self._holds.values() if hold.suspend_at(self._hold_seconds) <= now]:
            self._suspend(hold.generation, SLOW_CONSUMER)


def _not_before(generation: Generation) -> float:
    """Return from when on a stream may be suspended: its owners' epochs tell how often it was in the last minute.

    What an engine's death may do to an answer is not done to it without need: with penalties it would be worse for it.
    """
    found = generation.continuing.exactness
    if isinstance(found, NotExact) and (Inexact.PENALTIES in found.kinds or not generation.continuing.may_move):
        return math.inf
    recent = generation.owners_since[-SUSPENSIONS_PER_MINUTE:]
    if len(recent) < SUSPENSIONS_PER_MINUTE:
        return 0.0
    return generation.times.claimed_at + (recent[0] - generation.epoch) / 1000 + 60.0
