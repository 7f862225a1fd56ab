"""Brings ended streams from Redis into the database: nothing is lost, and nothing counts twice.

Order: read from the oldest on, commit, then delete what was committed. A database that is away, or a crash before the
commit, leaves everything where it was; a crash after the commit brings the same events again, and the ledger knows them
by their stream. Redis' lock only saves work: two at the same time would be as exact.

An entry that cannot be read or stored is set aside in a stream of its own, and the others go on.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import structlog
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from redis import Redis
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

from apps.tenants.live_state import redis_client
from apps.usage.enums import FinishReason, StreamState
from apps.usage.metrics import USAGE_BACKLOG, USAGE_SET_ASIDE, USAGE_STORED
from apps.usage.models import LABEL_LENGTH, REF_LENGTH
from apps.usage.services import usage_record
from headrace_wire import redis_keys
from headrace_wire.functions import Reply
from headrace_wire.usage_events import UsageEvent, usage_event

logger = structlog.get_logger(__name__)

BATCH = 500
"""Events of one transaction."""
RUN_SECONDS = 30.0
"""Of one run, whose last batch may take longer; the next run goes on."""
LOCK_SECONDS = 30

_LARGEST_NUMBER = 2**53
_LATEST_MS = 4_102_444_800_000
"""The year 2100; beyond it a number is no time."""

Entry = tuple[bytes, dict[bytes, bytes]]


def usage_collect() -> int:
    """Stores what ended since the last run; returns how many streams were new to the ledger.

    Where the database or Redis is away, it is logged and the next run tries again.
    """
    stored = 0
    try:
        with _lock() as lock:
            if lock is not None:
                for count in _batches(lock):
                    stored += count
    except (OperationalError, InterfaceError, RedisError) as error:
        logger.warning("usage_waits", error=str(error).strip())
    return stored


def usage_retry() -> int:
    """Moves what was set aside back to the events that wait; returns how many."""
    redis, moved = redis_client(), 0
    aside = redis_keys.usage_set_aside_key()
    while entries := _read(redis, aside):
        pipeline = redis.pipeline(transaction=True)
        for entry_id, fields in entries:
            plain: Any = {name: value for name, value in fields.items() if name not in {b"entry", b"problem"}}
            pipeline.xadd(redis_keys.usage_key(), plain or {b"empty": b"1"})
            pipeline.xdel(aside, entry_id)
        pipeline.execute()
        moved += len(entries)
    return moved


@contextmanager
def _lock() -> Iterator[Lock | None]:
    """Holds the lock; None where somebody else does."""
    lock = redis_client().lock(redis_keys.usage_lock_key(), timeout=LOCK_SECONDS, blocking=False)
    if not lock.acquire():
        yield None
        return
    try:
        yield lock
    finally:
        with suppress(LockError, RedisError):
            lock.release()


def _batches(lock: Lock) -> Iterator[int]:
    """Takes batch after batch while there are whole ones; yields how many streams of each were new."""
    redis, ends_at = redis_client(), time.monotonic() + RUN_SECONDS
    while entries := _read(redis, redis_keys.usage_key()):
        yield _batch(redis, entries)
        if len(entries) < BATCH or time.monotonic() >= ends_at:
            break
        lock.reacquire()
    USAGE_BACKLOG.set(int(redis.xlen(redis_keys.usage_key())))


def _read(redis: Redis, key: str) -> list[Entry]:
    entries: Reply = redis.xrange(key, count=BATCH)
    return list(entries)


def _batch(redis: Redis, entries: list[Entry]) -> int:
    events: dict[bytes, UsageEvent] = {}
    problems: dict[bytes, Exception] = {}
    for entry_id, fields in entries:
        try:
            events[entry_id] = _checked(usage_event(fields), entry_id)
        except (KeyError, ValueError) as error:
            problems[entry_id] = error
    stored = _store(events, problems)
    _set_aside(redis, [entry for entry in entries if entry[0] in problems], problems)
    done = [entry_id for entry_id in events if entry_id not in problems]
    if done:
        redis.xdel(redis_keys.usage_key(), *done)
    if stored:
        USAGE_STORED.inc(stored)
        logger.info("usage_stored", streams=stored)
    return stored


def _store(events: dict[bytes, UsageEvent], problems: dict[bytes, Exception]) -> int:
    """Stores all in one transaction, or one by one where the database does not take them together."""
    try:
        return usage_record(events=list(events.values()))
    except (DataError, IntegrityError) as error:
        logger.warning("usage_batch_refused", events=len(events), error=str(error).strip())
    stored = 0
    for entry_id, event in events.items():
        try:
            stored += usage_record(events=[event])
        except (DataError, IntegrityError) as error:
            problems[entry_id] = error
    return stored


def _checked(event: UsageEvent, entry_id: bytes) -> UsageEvent:
    """Returns the event with its times filled in.

    Raises:
        ValueError: It holds what no column takes.
    """
    texts = {event.stream_id: REF_LENGTH, event.tenant_id: REF_LENGTH, event.api_key_id: REF_LENGTH}
    texts |= {event.user_id: REF_LENGTH, event.deployment_id: REF_LENGTH, event.deployment: LABEL_LENGTH}
    if not event.stream_id or any(len(text) > longest or "\0" in text for text, longest in texts.items()):
        raise ValueError("a text is missing, too long or not a text")
    numbers = (event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.cost_micros)
    if not all(0 <= number <= _LARGEST_NUMBER for number in numbers):
        raise ValueError("a number is out of range")
    if event.state not in StreamState.values or event.finish_reason not in FinishReason.values:
        raise ValueError("the stream has not ended")
    ended_ms = event.ended_ms or int(entry_id.partition(b"-")[0])
    if not 0 <= event.admitted_ms <= _LATEST_MS or not 0 < ended_ms <= _LATEST_MS:
        raise ValueError("a time is out of range")
    return msgspec.structs.replace(event, admitted_ms=event.admitted_ms or ended_ms, ended_ms=ended_ms)


def _set_aside(redis: Redis, entries: list[Entry], problems: dict[bytes, Exception]) -> None:
    for entry_id, fields in entries:
        problem = f"{type(problems[entry_id]).__name__}: {problems[entry_id]}"[:500]
        kept: Any = {**fields, b"entry": entry_id, b"problem": problem}
        pipeline = redis.pipeline(transaction=True)
        pipeline.xadd(redis_keys.usage_set_aside_key(), kept)
        pipeline.xdel(redis_keys.usage_key(), entry_id)
        pipeline.execute()
        USAGE_SET_ASIDE.inc()
        logger.error("usage_set_aside", entry=entry_id.decode(), problem=problem)
