"""The deployments' circuit breakers as this gateway knows them: read once a second, asked at each admission.

What gateways see of their own streams' ends, and of workers, goes to Redis with the same call that reads the states.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from apps.streams import metrics
from apps.streams.fleet_view import FleetView
from headrace_wire.breakers import BreakerReading, BreakerState, Seen, breaker_call, breaker_parse
from headrace_wire.errors import DeadlineExceededError, EngineError, ServerError
from headrace_wire.functions import Functions
from headrace_wire.messages import Ended, StreamState
from headrace_wire.snapshot import DeploymentConfig

log = structlog.get_logger(__name__)

_GOOD = frozenset({StreamState.FINISHED, StreamState.REPLACED})
_FAULTS_OF_WORKERS = frozenset({EngineError.code, DeadlineExceededError.code, ServerError.code})
_SHOWN = {BreakerState.CLOSED: 0.0, BreakerState.HALF_OPEN: 0.5, BreakerState.OPEN: 1.0}


@dataclass(slots=True)
class _Breaker:
    """One deployment's, and what was seen since it was told to Redis."""

    reading: BreakerReading = field(default_factory=BreakerReading)
    finished: int = 0
    failed: int = 0
    is_asked: bool = False
    wanted: int = 0
    """Requests that were turned away."""
    probes: int = 0
    """Requests that may still try a half-open one."""
    trying: set[str] = field(default_factory=set)
    """Streams that do, since it is half open."""
    tried_finished: int = 0
    tried_failed: int = 0


class Breakers:
    """Belongs to one event loop. A deployment whose breaker is switched off is always admitted to."""

    def __init__(self, functions: Functions, fleet: FleetView) -> None:
        self._functions = functions
        self._fleet = fleet
        self._known: dict[str, _Breaker] = {}
        self._looking = asyncio.Lock()
        """What was seen is told once."""

    def admits(self, deployment: DeploymentConfig) -> bool:
        """Say whether a request may be admitted; one that tries a half-open deployment counts as tried."""
        if deployment.breaker is None:
            return True
        breaker = self._of(deployment.name)
        breaker.is_asked = True
        if breaker.reading.state is BreakerState.CLOSED:
            return True
        if breaker.probes:
            breaker.probes -= 1
            return True
        return False

    def turned_away(self, deployment: DeploymentConfig) -> None:
        """Note that a request would have tried the deployment, and was not admitted: it went elsewhere, or nowhere."""
        self._of(deployment.name).wanted += 1

    def give_back(self, deployment: DeploymentConfig) -> None:
        """Take back what `admits` has counted as tried: the request never came to a worker."""
        breaker = self._of(deployment.name)
        if breaker.reading.state is BreakerState.HALF_OPEN:
            breaker.probes += 1

    def trying(self, deployment: DeploymentConfig, stream_id: str) -> None:
        """Note the stream of a request that `admits` has counted as tried: how it ends decides."""
        breaker = self._of(deployment.name)
        if breaker.reading.state is BreakerState.HALF_OPEN:
            breaker.trying.add(stream_id)

    def is_closed(self, deployment: DeploymentConfig) -> bool:
        """Say whether requests are admitted without reserve; asks for nothing."""
        return deployment.breaker is None or self._of(deployment.name).reading.state is BreakerState.CLOSED

    def retry_after_seconds(self, deployment: str) -> float:
        """Return when an open one may be closed again, at the earliest."""
        return self._of(deployment).reading.retry_after_seconds

    def ended(self, deployment: str, ended: Ended) -> None:
        """Note how a stream has ended that was started here."""
        breaker = self._known.get(deployment)
        if breaker is None:
            return
        is_try = ended.stream_id in breaker.trying
        breaker.trying.discard(ended.stream_id)
        if ended.state in _GOOD:
            breaker.finished += 1
            breaker.tried_finished += is_try
        elif ended.error is not None and ended.error.code in _FAULTS_OF_WORKERS:
            breaker.failed += 1
            breaker.tried_failed += is_try

    async def look(self, deployments: Sequence[DeploymentConfig]) -> None:
        """Tell what was seen of these deployments, and learn how their breakers stand; forget the others.

        Raises:
            redis.exceptions.RedisError: what was seen is told the next time.
        """
        guarded = {one.name: (one.id, one.breaker) for one in deployments if one.breaker is not None}
        for name in self._known.keys() - guarded.keys():
            del self._known[name]
            metrics.BREAKER_STATE.labels(name).set(0)
        if not guarded:
            return
        async with self._looking:
            seen = {name: self._seen(name) for name in guarded}
            calls = [breaker_call(key, seen[name], terms) for name, (key, terms) in guarded.items()]
            replies = await self._functions.call_many(calls)
            for name, reply in zip(guarded, replies, strict=True):
                self._learn(name, seen[name], breaker_parse(reply))

    def _of(self, deployment: str) -> _Breaker:
        found = self._known.get(deployment)
        if found is None:
            found = self._known[deployment] = _Breaker()
        return found

    def _seen(self, name: str) -> Seen:
        breaker = self._of(name)
        return Seen(
            breaker.finished,
            breaker.failed,
            self._fleet.ready(name),
            breaker.is_asked,
            breaker.wanted,
            breaker.tried_finished,
            breaker.tried_failed,
            breaker.reading.since_ms,
        )

    def _learn(self, name: str, told: Seen, reading: BreakerReading) -> None:
        breaker = self._of(name)
        before, breaker.reading = breaker.reading, reading
        breaker.finished -= told.finished
        breaker.failed -= told.failed
        breaker.tried_finished -= told.tried_finished
        breaker.tried_failed -= told.tried_failed
        if reading.since_ms != before.since_ms:
            breaker.trying.clear()
            breaker.tried_finished = breaker.tried_failed = 0
        breaker.wanted = max(0, breaker.wanted - told.wanted)
        breaker.is_asked = False
        breaker.probes = breaker.probes + reading.probes if reading.state is BreakerState.HALF_OPEN else 0
        metrics.BREAKER_STATE.labels(name).set(_SHOWN[reading.state])
        if reading.state is not before.state:
            log.warning("breaker_moved", deployment=name, state=reading.state.value, reason=reading.reason)
