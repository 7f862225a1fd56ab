"""Publishes the configuration snapshot (`headrace_wire.snapshot`) after each committed change.

The apps above put their sections in at start (`AppConfig.ready`), so that a service of any app can ask for a
publication without knowing the others.
"""

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from django.db import transaction
from redis.exceptions import RedisError

from apps.tenants.live_state import call_function, redis_client
from headrace_wire import redis_keys
from headrace_wire.snapshot import ConfigSnapshot, decode_snapshot, encode_snapshot

logger = structlog.get_logger(__name__)

Section = Callable[[], list[Any]]
Prepare = Callable[[ConfigSnapshot], None]

_sections: dict[str, Section] = {}
_preparations: list[Prepare] = []


class _Pending(threading.local):
    """Whether this thread's transaction holds a change that no snapshot shows yet."""

    is_set = False


_pending = _Pending()


def section_register(name: str, build: Section, *, prepare: Prepare | None = None) -> None:
    """Puts a section into every snapshot: a field of `ConfigSnapshot`, and what reads its rows from the database.

    `prepare` brings to Redis what a snapshot only names, before it is stored; it is called again while it is current.
    """
    _sections[name] = build
    if prepare is not None:
        _preparations.append(prepare)


def snapshot_build(*, version: int) -> ConfigSnapshot:
    """Returns what the database says now."""
    return ConfigSnapshot(version=version, **{name: build() for name, build in _sections.items()})


def snapshot_publish() -> int | None:
    """Builds and stores a snapshot; returns its version, or None where somebody stored a newer one meanwhile.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    version = int(call_function("snapshot_version", [redis_keys.snapshot_version_key()], []))
    snapshot = snapshot_build(version=version)
    _prepare(snapshot)
    data = encode_snapshot(snapshot)
    stored = call_function(
        "snapshot_store", [redis_keys.snapshot_key()], [version, data, redis_keys.snapshot_channel()]
    )
    return version if stored else None


def snapshot_publish_on_commit() -> None:
    """Publishes once the running transaction is committed, however often it is called within it.

    The change is already durable then, so a Redis that does not answer is logged and left to `snapshot_ensure`.
    """
    _pending.is_set = True
    transaction.on_commit(_publish_pending)


def _publish_pending() -> None:
    if not _pending.is_set:
        return
    _pending.is_set = False
    try:
        version = snapshot_publish()
    except RedisError as error:
        logger.warning("snapshot_not_published", error=str(error))
    else:
        logger.info("snapshot_published", version=version)


def snapshot_ensure() -> int | None:
    """Publishes if Redis holds no snapshot, or one that differs from the database; returns the version if it did.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    data = redis_client().hget(redis_keys.snapshot_key(), "data")
    current = _current(data) if isinstance(data, bytes) else None
    if current is None:
        return snapshot_publish()
    _prepare(current)
    return None


def _prepare(snapshot: ConfigSnapshot) -> None:
    for prepare in _preparations:
        prepare(snapshot)


def _current(data: bytes) -> ConfigSnapshot | None:
    """Returns the snapshot if the database says the same."""
    try:
        version = decode_snapshot(data).version
    except msgspec.DecodeError:
        return None
    snapshot = snapshot_build(version=version)
    return snapshot if encode_snapshot(snapshot) == data else None
