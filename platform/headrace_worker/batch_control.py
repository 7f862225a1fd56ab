"""Moves a worker's batch limit between the deployment's bounds, or only says how it would."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping

from headrace_wire.batch import BatchControl, BatchReport
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.batch_rules import BatchBounds, BatchReading, by_objectives, classic
from headrace_worker.engine import EngineStats
from headrace_worker.generation import Generation
from headrace_worker.places import Places

log = logging.getLogger(__name__)

DECIDE_SECONDS = 2.0
MOST_ENDED = 1024


class DynamicBatch:
    """Follows both rules side by side, each from where it would be; one of them may set the limit.

    Only claims obey it: an answer that runs is never stopped for it. Belongs to one event loop.
    """

    def __init__(self, live: Mapping[str, Generation], places: Places) -> None:
        self._live = live
        self._places = places
        self._control = BatchControl.OFF
        self._bounds = BatchBounds(1, 1, 1.0, 1.0)
        self._classic = self._objectives = 0
        self._load = 0.0
        self._seen: dict[str, int] = {}
        """Tokens that each stream had at the last decision."""
        self._ended: deque[Generation] = deque(maxlen=MOST_ENDED)
        self._decided_at = time.monotonic()

    @property
    def report(self) -> BatchReport:
        """What the limit is, and what it would be."""
        return BatchReport(self._places.slots, self._classic, self._objectives)

    def configure(self, deployment: DeploymentConfig) -> None:
        """Use these bounds and goals; a rule that was followed goes on from where it was."""
        most = min(deployment.batch_max or deployment.max_num_seqs, deployment.max_num_seqs)
        self._bounds = BatchBounds(
            deployment.batch_min, most, deployment.batch_tpot_goal_seconds, deployment.batch_ttft_goal_seconds
        )
        self._control = deployment.batch_control
        is_followed = self._control is not BatchControl.OFF
        self._classic = self._bounds.clamp(self._classic or most) if is_followed else 0
        self._objectives = self._bounds.clamp(self._objectives or most) if is_followed else 0
        self._apply()

    def consider(self, stats: EngineStats) -> None:
        """Take note of what the engine says of itself."""
        self._load = stats.kv_cache_usage

    def ended(self, generation: Generation) -> None:
        """A stream has left: what it took since the last decision counts in the next."""
        if self._control is not BatchControl.OFF:
            self._ended.append(generation)

    async def run(self) -> None:
        """Decide until cancelled."""
        while True:
            await asyncio.sleep(DECIDE_SECONDS)
            if self._control is not BatchControl.OFF:
                self.decide()

    def decide(self) -> None:
        """Ask both rules, once."""
        reading = self._read()
        self._classic = classic(self._classic, reading, self._bounds)
        self._objectives = by_objectives(self._objectives, reading, self._bounds)
        self._apply()

    def _apply(self) -> None:
        chosen = {BatchControl.CLASSIC: self._classic, BatchControl.OBJECTIVES: self._objectives}.get(self._control)
        if chosen != self._places.controlled:
            log.info("batch limit by %s: %s", self._control.value, chosen or "the deployment's")
            self._places.controlled = chosen
            self._places.changed.set()

    def _read(self) -> BatchReading:
        now, before = time.monotonic(), self._decided_at
        running = [one for one in self._live.values() if not one.is_held]
        # Of those that were here before: one that got nothing has taken as long at least.
        tpot = [
            (now - before) / max(1, one.seq - self._seen[one.stream_id])
            for one in running
            if one.stream_id in self._seen and one.times.first_token_at
        ]
        tpot += [
            (one.times.last_token_at - one.times.first_token_at) / (one.new_tokens - 1)
            for one in self._ended
            if one.stream_id not in self._seen and one.new_tokens > 1
        ]
        ttft = [
            one.times.queue_time + one.times.first_token_at - one.times.claimed_at
            for one in (*running, *self._ended)
            if one.times.first_token_at > before
        ]
        seen = {one.stream_id: one.seq for one in running}
        self._seen, self._decided_at = seen, now
        self._ended.clear()
        return BatchReading(self._load, len(running), tpot, ttft)
