"""What a worker does with the control messages that it gets."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace_wire.messages import (
    Cancel,
    CancelPrefill,
    ControlMessage,
    Credit,
    Drain,
    Migrate,
    Prefill,
    Resume,
    WarmUp,
)
from headrace_worker.prefilling import Prefilling
from headrace_worker.streams import Streams

log = logging.getLogger(__name__)


class Drains(Protocol):
    """Who empties the worker."""

    def drain(self, order: Drain) -> None:
        """Take nothing more."""

    def resume(self) -> None:
        """Take streams again."""


class Orders:
    """Carries out messages, those that came at once together."""

    def __init__(
        self, streams: Streams, prefilling: Prefilling, drains: Drains, *, warm_up: Callable[[float], None]
    ) -> None:
        """`warm_up` is called for each WarmUp."""
        self._streams = streams
        self._prefilling = prefilling
        self._drains = drains
        self._warm_up = warm_up

    def obey(self, messages: Sequence[ControlMessage]) -> None:
        """Do what is asked; credit is given to all streams together."""
        cancelled: dict[str, str] = {}
        credit: dict[str, int] = defaultdict(int)
        migrating: list[str] = []
        for message in messages:
            if isinstance(message, Cancel):
                cancelled[message.stream_id] = message.reason
            elif isinstance(message, Credit):
                credit[message.stream_id] = max(message.up_to, credit[message.stream_id])
            elif isinstance(message, Migrate):
                log.info("told to migrate stream_id=%s: %s", message.stream_id, message.reason)
                migrating.append(message.stream_id)
            else:
                self._obey_one(message)
        if cancelled:
            self._streams.cancel(cancelled)
        if credit:
            self._streams.credit(credit)
        if migrating:
            self._streams.departures.migrate(migrating)

    def _obey_one(self, message: WarmUp | Prefill | CancelPrefill | Drain | Resume) -> None:
        match message:
            case Prefill():
                self._prefilling.put(message)
            case CancelPrefill():
                self._prefilling.cancel(message.prefill_id)
            case Drain():
                self._drains.drain(message)
            case Resume():
                self._drains.resume()
            case WarmUp():
                self._warm_up(message.if_idle_seconds)
