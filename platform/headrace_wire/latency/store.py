"""The last two hours in Redis: slots of ten seconds that gateways file and everybody else reads.

A gateway files what it measured in a slot as parts, each under a name of its own, so that a part which is sent twice
counts once and nothing has to be added up in Redis. Readers merge.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from redis import Redis

from headrace_wire import redis_keys
from headrace_wire.functions import Argument, Call, Reply
from headrace_wire.latency.summary import SeriesKey, Summary

SLOT_SECONDS = 10
READABLE_SECONDS = 2 * 3600
KEPT_SECONDS = READABLE_SECONDS + 600
"""Some time longer than what is read, so that no minute is rolled up while half of it is gone."""

_SEPARATOR = "\x1f"
_SLOTS_AT_ONCE = 120


@dataclass(frozen=True, slots=True)
class SlotBook:
    """What one gateway measured for one deployment in the slot that begins at `slot` (Unix seconds)."""

    part: str
    """Nothing else was or will be filed in this slot under this name."""
    slot: int
    deployment: str
    total: bytes
    """A packed `Summary` of all series."""
    series: Sequence[tuple[SeriesKey, bytes]]

    @classmethod
    def of(cls, part: str, slot: int, deployment: str, series: Mapping[SeriesKey, Summary]) -> Self:
        """Pack summaries of series of one deployment."""
        total = Summary()
        for summary in series.values():
            total.merge(summary)
        return cls(part, slot, deployment, total.pack(), [(key, summary.pack()) for key, summary in series.items()])


@dataclass(frozen=True, slots=True)
class StoredSeries:
    """One part of one series in one slot."""

    slot: int
    part: str
    """Begins with the process id of the gateway that filed it."""
    key: SeriesKey
    packed: bytes
    """A `Summary`."""


def slot_of(unix_seconds: float) -> int:
    """Return the beginning of the slot that a moment is in."""
    whole = int(unix_seconds)
    return whole - whole % SLOT_SECONDS


def filing_call(books: Sequence[SlotBook]) -> Call:
    """Return the call that files `books`; it may be repeated."""
    args: list[Argument] = [KEPT_SECONDS]
    for book in books:
        args += [book.slot, book.deployment, book.part, book.total, len(book.series)]
        for key, packed in book.series:
            args += [_SEPARATOR.join((book.part, key.tenant_id, key.key_id, key.worker)), packed]
    keys = [redis_keys.latency_series_prefix(), redis_keys.latency_total_prefix()]
    return "measure", [*keys, redis_keys.latency_slots_key(), redis_keys.latency_minutes_key()], args


def window(client: "Redis", *, deployment: str, seconds: float, now: float | None = None) -> Summary:
    """Return what a deployment's streams took in the last `seconds`, which begin with the slot that they are in.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    end = time.time() if now is None else now
    summary = Summary()
    for _, packed in totals_read(client, start=slot_of(end - seconds), end=int(end) + 1, deployment=deployment):
        summary.merge_packed(packed)
    return summary


def totals_read(client: "Redis", *, start: int, end: int, deployment: str | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield slot and packed `Summary` of whole deployments, of slots that begin at `start` or later and before `end`.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    for slot, _, fields in _read(client, redis_keys.latency_total_prefix(), start, end, deployment):
        for packed in fields.values():
            yield slot, packed


def series_read(client: "Redis", *, start: int, end: int, deployment: str | None = None) -> Iterator[StoredSeries]:
    """Yield the parts of all series, of slots that begin at `start` or later and before `end`.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    for slot, name, fields in _read(client, redis_keys.latency_series_prefix(), start, end, deployment):
        for field, packed in fields.items():
            parts = field.decode().split(_SEPARATOR)
            if len(parts) == 4:
                yield StoredSeries(slot, parts[0], SeriesKey(name, *parts[1:]), packed)


def minutes_waiting(client: "Redis") -> dict[int, int]:
    """Return the minutes (Unix seconds) that have what the database lacks, and how often something was filed in them.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    found: dict[bytes, bytes] = client.hgetall(redis_keys.latency_minutes_key())  # type: ignore[assignment]
    return {int(minute): int(times) for minute, times in found.items()}


def rolled_call(minutes: Mapping[int, int]) -> Call:
    """Return the call that says that the database has these minutes as they were when they had been filed so often."""
    args = [number for pair in sorted(minutes.items()) for number in pair]
    return "rolled", [redis_keys.latency_minutes_key()], args


def _read(
    client: "Redis", prefix: str, start: int, end: int, deployment: str | None
) -> Iterator[tuple[int, str, dict[bytes, bytes]]]:
    reply: Reply = client.zrangebyscore(redis_keys.latency_slots_key(), start, f"({end}")
    names = [(int(slot), name) for slot, _, name in (entry.decode().partition(":") for entry in reply)]
    wanted = [(slot, name) for slot, name in names if deployment is None or name == deployment]
    for first in range(0, len(wanted), _SLOTS_AT_ONCE):
        some = wanted[first : first + _SLOTS_AT_ONCE]
        pipeline = client.pipeline(transaction=False)
        for slot, name in some:
            pipeline.hgetall(f"{prefix}{slot}:{name}")
        found: list[dict[bytes, bytes]] = pipeline.execute()
        for (slot, name), fields in zip(some, found, strict=True):
            yield slot, name, fields
