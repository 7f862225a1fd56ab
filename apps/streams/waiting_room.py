"""What those who wait in a deployment's queue are told: their place, how long it may take, and why it rose if it did.

A place falls as others go; it rises only with a reason that is told with it. How long it takes comes from the measured
time that a place serves a stream and the turns between two of the same tenant, as the range that held 8 of 10 waits
lately. Where workers go or come, it is told anew.
"""

import math
import time
from collections.abc import Callable
from enum import StrEnum
from weakref import WeakKeyDictionary

import msgspec

from apps.streams import metrics
from apps.streams.limits import NO_PLACE, QueueNews
from headrace_wire.request_queue import Place, RequestQueue

LOOK_AT_MOST = 256
"""Waiting streams that one look asks for; with more, they take turns."""

MIN_SAMPLES = 5
"""Measured claims before a time is told."""

NEWS_SECONDS = 0.05
"""What is told travels, and so does what ends the wait: shorter times are not told apart (as `_waiting.lua` counts)."""

RISE_NOTICED = 0.1
"""A place that rises by less is not told: where many tenants wait, places are estimates."""


WAKING_LEAST, WAKING_MOST = 0.5, 2.0
"""Of what a model's last start took: between these it should be there again."""


class RiseReason(StrEnum):
    """Why a place became a later one, or, told at once, why nothing moves."""

    FAIR_SHARE = "fair_share"
    """Somebody came who was served less."""
    PRIORITY = "priority"
    """Somebody came whose plan goes first."""
    OWN_LIMIT = "own_limit"
    """The caller's own parallel requests are used up."""
    CAPACITY_LOST = "capacity_lost"
    """A worker has gone: it takes longer, and what it worked on may wait again, ahead."""
    NO_WORKER = "no_worker"
    """None runs: who waits has one started, where the deployment's autoscale policy lets it."""
    WAKING = "waking"
    """No rise: the model is waking up, since nobody had used it for a while."""


class Waiting:
    """One waiting stream of a reader."""

    __slots__ = ("__weakref__", "_before", "_first", "_nudge", "_unheard", "_waking", "stream_id", "told")

    def __init__(
        self, stream_id: str, nudge: Callable[[], None], waking: Callable[[], float | None] = lambda: None
    ) -> None:
        """`nudge` wakes the reader, who then finds what `take` returns.

        `waking` says how long the model took lately to wake up, where it sleeps or is about to wake.
        """
        self.stream_id = stream_id
        self._waking = waking
        self.told: QueueNews | None = None
        self._nudge = nudge
        self._before: Place | None = None
        self._first: tuple[float, tuple[float, float]] | None = None
        """When a time was told first, and what."""
        self._unheard: QueueNews | None = None

    def tell(self, nudge: Callable[[], None]) -> None:
        """Wake another reader from now on."""
        self._nudge = nudge

    def take(self) -> QueueNews | None:
        """Return what the reader has not heard yet."""
        news, self._unheard = self._unheard, None
        return news

    def begin(self, place: Place | None) -> QueueNews:
        """Return what admission knows, which its caller tells; position 0 where it knows nothing."""
        if place is None:
            return NO_PLACE
        reason = RiseReason.NO_WORKER if place.places <= 0 else ""
        self._before, self.told = place, self._of_a_sleeper(place) or QueueNews(place.position, _eta(place), reason)
        if self.told.reason is RiseReason.WAKING:
            return self.told
        if self.told.eta_seconds is not None:
            self._first = time.monotonic(), self.told.eta_seconds
        return self.told

    def look(self, place: Place) -> None:
        """Compare with what was told, and tell what has changed."""
        before, told = self._before, self.told
        self._before = place
        if (sleeping := self._of_a_sleeper(place)) is not None:
            if told is None or (told.position, told.reason) != (sleeping.position, sleeping.reason):
                self.told = self._unheard = sleeping
                self._nudge()
            return
        news = QueueNews(place.position, _eta(place), self._reason(before, place))
        if before is not None and before.places != place.places:
            self._withdraw()
        elif told is not None and told.position <= news.position <= told.position * (1 + RISE_NOTICED):
            if told.eta_seconds or not news.eta_seconds:
                return
            news = msgspec.structs.replace(news, position=told.position, reason="")
        if self._first is None and news.eta_seconds is not None:
            self._first = time.monotonic(), news.eta_seconds
        self.told = self._unheard = news
        self._nudge()

    def _of_a_sleeper(self, place: Place) -> QueueNews | None:
        """Return what is told while the model is not there: about how long it takes to wake up, from its last time."""
        seconds = self._waking()
        if seconds is None:
            return None
        eta = (seconds * WAKING_LEAST, seconds * WAKING_MOST) if seconds else None
        return QueueNews(place.position, eta, RiseReason.WAKING)

    def _withdraw(self) -> None:
        """Workers have gone, or come: what is told from now on counts in place of what was told before."""
        if self._first is not None:
            metrics.QUEUE_ETAS.labels("withdrawn").inc()
            self._first = None

    def is_taken(self) -> None:
        """The wait is over: see whether it took as long as was told first."""
        if self._first is not None:
            at, (earliest, latest) = self._first
            outcome = "inside" if earliest <= time.monotonic() - at <= latest else "outside"
            metrics.QUEUE_ETAS.labels(outcome).inc()
            self._first = None

    def _reason(self, before: Place | None, place: Place) -> str:
        if before is not None and 0 <= place.places < before.places:
            return RiseReason.CAPACITY_LOST
        if self.told is None or place.position <= self.told.position:
            return ""
        if place.is_own_limit:
            return RiseReason.OWN_LIMIT
        if before is not None and place.served_before > before.served_before:
            return RiseReason.CAPACITY_LOST
        if before is not None and place.higher > before.higher:
            return RiseReason.PRIORITY
        return RiseReason.FAIR_SHARE


class WaitingRoom:
    """Looks at the places of this gateway's waiting streams and tells those whose place has changed."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._waiting: WeakKeyDictionary[Waiting, None] = WeakKeyDictionary()
        """In the order in which they are asked for."""

    def enter(self, waiting: Waiting) -> None:
        """Begin to look after a stream; it is forgotten when its reader is."""
        self._waiting[waiting] = None

    def leave(self, waiting: Waiting) -> None:
        """Stop: it was taken, or its reader went."""
        self._waiting.pop(waiting, None)

    def __contains__(self, waiting: Waiting) -> bool:
        """Say whether a stream is looked after still."""
        return waiting in self._waiting

    async def look(self) -> None:
        """Ask where they stand, the longest unasked first.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        asked = list(self._waiting)[:LOOK_AT_MOST]
        if not asked:
            return
        places = await self._queue.places([one.stream_id for one in asked])
        for one, place in zip(asked, places, strict=True):
            if place is not None:
                one.look(place)
        if len(self._waiting) > LOOK_AT_MOST:  # to the end, so that the others have their turn
            for one in asked:
                if one in self._waiting:
                    self._waiting.pop(one)
                    self._waiting[one] = None


def _eta(place: Place) -> tuple[float, float] | None:
    if place.samples < MIN_SAMPLES:
        return None
    about = place.expected_seconds + NEWS_SECONDS
    least, most = max(0.0, about * place.least - NEWS_SECONDS), about * place.most - NEWS_SECONDS
    # Where nothing is served any more, as after the last worker left, there is nothing to expect.
    return (least, most) if math.isfinite(least) and math.isfinite(most) else None
