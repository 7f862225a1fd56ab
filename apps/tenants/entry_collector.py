"""Brings entries of a Redis stream into the database: nothing is lost, and nothing counts twice.

Order: read from the oldest on, commit, then delete what was committed. A database that is away, or a crash before the
commit, leaves everything where it was; a crash after the commit brings the same entries again, and the store knows
them. Redis' lock only saves work: two at the same time would be as exact.

An entry that cannot be read or stored is set aside in a stream of its own, and the others go on.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from prometheus_client import Counter, Gauge
from redis import Redis
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

from apps.tenants.live_state import redis_client
from headrace_wire.functions import Reply

logger = structlog.get_logger(__name__)

RUN_SECONDS = 30.0
"""Of one run, whose last batch may take longer; the next run goes on."""
LOCK_SECONDS = 30

Entry = tuple[bytes, dict[bytes, bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Counts:
    """What a collector tells of itself."""

    stored: Counter
    set_aside: Counter
    backlog: Gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryCollector(Generic[T]):
    """One stream and where its entries go."""

    name: str
    """Begins the names of what is logged."""
    stream: str
    lock: str
    """Key: who collects now."""
    aside: str
    """Key of the stream for what cannot be read: fields as they were, and `entry` (the first id) and `problem`."""
    counts: Counts
    read: Callable[[bytes, dict[bytes, bytes]], T]
    """From an entry's id and fields; KeyError or ValueError where it is none."""
    store: Callable[[list[T]], int]
    """In one transaction; what is there already changes nothing. Returns how many were new."""
    batch: int
    """Entries of one transaction."""
    kept_aside: int | None = None
    """So many at most, the newest; None for all."""

    def collect(self) -> int:
        """Stores what came since the last run; returns how many entries were new.

        Where the database or Redis is away, it is logged and the next run tries again.
        """
        stored = 0
        try:
            with self._locked() as lock:
                if lock is not None:
                    for count in self._batches(lock):
                        stored += count
        except (OperationalError, InterfaceError, RedisError) as error:
            logger.warning(f"{self.name}_waits", error=str(error).strip())
        return stored

    def retry(self) -> int:
        """Moves what was set aside back to what waits; returns how many entries."""
        redis, moved = redis_client(), 0
        while entries := self._oldest(redis, self.aside):
            pipeline = redis.pipeline(transaction=True)
            for entry_id, fields in entries:
                plain: Any = {name: value for name, value in fields.items() if name not in {b"entry", b"problem"}}
                pipeline.xadd(self.stream, plain or {b"empty": b"1"})
                pipeline.xdel(self.aside, entry_id)
            pipeline.execute()
            moved += len(entries)
        return moved

    @contextmanager
    def _locked(self) -> Iterator[Lock | None]:
        """Holds the lock; None where somebody else does."""
        lock = redis_client().lock(self.lock, timeout=LOCK_SECONDS, blocking=False)
        if not lock.acquire():
            yield None
            return
        try:
            yield lock
        finally:
            with suppress(LockError, RedisError):
                lock.release()

    def _batches(self, lock: Lock) -> Iterator[int]:
        """Takes batch after batch while there are whole ones; yields how many entries of each were new."""
        redis, ends_at = redis_client(), time.monotonic() + RUN_SECONDS
        while entries := self._oldest(redis, self.stream):
            yield self._take(redis, entries)
            if len(entries) < self.batch or time.monotonic() >= ends_at:
                break
            lock.reacquire()
        self.counts.backlog.set(int(redis.xlen(self.stream)))

    def _oldest(self, redis: Redis, key: str) -> list[Entry]:
        entries: Reply = redis.xrange(key, count=self.batch)
        return list(entries)

    def _take(self, redis: Redis, entries: list[Entry]) -> int:
        found: dict[bytes, T] = {}
        problems: dict[bytes, Exception] = {}
        for entry_id, fields in entries:
            try:
                found[entry_id] = self.read(entry_id, fields)
            except (KeyError, ValueError) as error:
                problems[entry_id] = error
        stored = self._store(found, problems)
        for entry_id, fields in entries:
            if entry_id in problems:
                self._set_aside(redis, entry_id, fields, problems[entry_id])
        done = [entry_id for entry_id in found if entry_id not in problems]
        if done:
            redis.xdel(self.stream, *done)
        if stored:
            self.counts.stored.inc(stored)
            logger.info(f"{self.name}_stored", entries=stored)
        return stored

    def _store(self, found: dict[bytes, T], problems: dict[bytes, Exception]) -> int:
        """Stores all in one transaction, or one by one where the database does not take them together."""
        try:
            return self.store(list(found.values()))
        except (DataError, IntegrityError) as error:
            logger.warning(f"{self.name}_batch_refused", entries=len(found), error=str(error).strip())
        stored = 0
        for entry_id, entry in found.items():
            try:
                stored += self.store([entry])
            except (DataError, IntegrityError) as error:
                problems[entry_id] = error
        return stored

    def _set_aside(self, redis: Redis, entry_id: bytes, fields: dict[bytes, bytes], error: Exception) -> None:
        problem = f"{type(error).__name__}: {error}"[:500]
        kept: Any = {**fields, b"entry": entry_id, b"problem": problem}
        pipeline = redis.pipeline(transaction=True)
        pipeline.xadd(self.aside, kept, maxlen=self.kept_aside)
        pipeline.xdel(self.stream, entry_id)
        pipeline.execute()
        self.counts.set_aside.inc()
        logger.error(f"{self.name}_set_aside", entry=entry_id.decode(), problem=problem)
