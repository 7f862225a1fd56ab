"""Looks at streams from behind: their logs and records in Redis, and what workers say of their engines."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo
from headrace_wire.messages import AnyLogEntry, Delta, Ended, Started

DEADLINE_SECONDS = 120
BLOCK_MS = 2000
"""Of one reading call; the client takes a silence as long as the deadline for a lost connection."""


@dataclass
class StreamProbe:
    """Reads the live state of a stack; writes nothing."""

    redis_url: str
    redis: "Redis" = field(init=False)

    def __post_init__(self) -> None:
        self.redis = Redis.from_url(self.redis_url, socket_timeout=DEADLINE_SECONDS)

    def stream_ids(self) -> set[str]:
        """Return the streams that have a log."""
        prefix = redis_keys.log_prefix()
        keys: Any = self.redis.keys(f"{prefix}*")
        return {key.decode().removeprefix(prefix) for key in keys}

    def wait_for_end(self, stream_id: str) -> Ended:
        """Return the terminal entry, waiting for it."""
        ended = self.wait_for_entry(stream_id, lambda entry: isinstance(entry, Ended))
        assert isinstance(ended, Ended)
        return ended

    def wait_for_entry(
        self, stream_id: str, wanted: Callable[[AnyLogEntry], bool], *, after: bytes = b"0-0"
    ) -> AnyLogEntry:
        """Return the first entry behind the id `after` that is wanted, the moment that it is there."""
        last, deadline = after, time.monotonic() + DEADLINE_SECONDS
        while True:
            key = redis_keys.log_key(stream_id)
            rows: Any = self.redis.xread({key: last}, block=BLOCK_MS)
            assert rows or time.monotonic() < deadline, f"{stream_id} has nothing of the kind for {DEADLINE_SECONDS} s"
            groups = rows.values() if isinstance(rows, dict) else [rows[0][1] if rows else []]
            for row_id, fields in _flat(next(iter(groups), [])):
                last = row_id
                entry = codec.decode_log_entry(fields[b"d"])
                if wanted(entry):
                    return entry

    def tail_id(self, stream_id: str) -> bytes:
        """Return the id of the log's last entry, for `wait_for_entry`."""
        rows: Any = self.redis.xrevrange(redis_keys.log_key(stream_id), count=1)
        return bytes(rows[0][0])

    def entries(self, stream_id: str) -> list[AnyLogEntry]:
        """Return the whole log."""
        rows: Any = self.redis.xrange(redis_keys.log_key(stream_id))
        return [codec.decode_log_entry(fields[b"d"]) for _, fields in rows]

    def deltas(self, stream_id: str) -> list[Delta]:
        """Return the entries of the log that have text."""
        return [entry for entry in self.entries(stream_id) if isinstance(entry, Delta)]

    def text(self, stream_id: str) -> str:
        """Return the text of the log."""
        return "".join(entry.text for entry in self.deltas(stream_id))

    def token_count(self, stream_id: str) -> int:
        """Return how many token ids the worker has logged: the engine's own count."""
        raw: Any = self.redis.get(redis_keys.token_ids_key(stream_id))
        return len(codec.unpack_token_ids(raw or b""))

    def wait_for_tokens(self, stream_id: str, count: int, *, seconds: float = 0.5) -> int:
        """Return how many tokens were generated once there are `count`, after giving the engine time to run past it."""
        return self.wait_for_all_tokens([stream_id], count, seconds=seconds)[0]

    def wait_for_all_tokens(self, stream_ids: Sequence[str], count: int, *, seconds: float = 0.5) -> list[int]:
        """Return how many tokens each stream has once all have `count`, after giving their engines time likewise."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while min(counts := self._token_counts(stream_ids)) < count:
            assert time.monotonic() < deadline, f"{counts} of {count} tokens"
            time.sleep(0.02)
        return self.wait_until_all_still(stream_ids, seconds=seconds)

    def wait_until_still(self, stream_id: str, *, seconds: float = 0.5) -> int:
        """Return how many tokens were generated once that number has not changed for `seconds`."""
        return self.wait_until_all_still([stream_id], seconds=seconds)[0]

    def wait_until_all_still(self, stream_ids: Sequence[str], *, seconds: float = 0.5) -> list[int]:
        """Return how many tokens each stream has once none has got any for `seconds`."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        counts, since = self._token_counts(stream_ids), time.monotonic()
        while time.monotonic() - since < seconds:
            assert time.monotonic() < deadline, "the engine does not stop"
            time.sleep(0.02)
            if (now := self._token_counts(stream_ids)) != counts:
                counts, since = now, time.monotonic()
        return counts

    def _token_counts(self, stream_ids: Sequence[str]) -> list[int]:
        return [self.token_count(stream_id) for stream_id in stream_ids]

    def wait_for_new_stream(self, before: set[str]) -> str:
        """Return the stream that is not in `before`, waiting for it."""
        (stream_id,) = self.wait_for_new_streams(before, 1)
        return stream_id

    def wait_for_new_streams(self, before: set[str], count: int) -> list[str]:
        """Return the streams that are not in `before`, waiting for so many of them."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(new := self.stream_ids() - before) < count:
            assert time.monotonic() < deadline, f"{len(new)} of {count} new streams"
            time.sleep(0.02)
        return sorted(new)

    def state(self, stream_id: str) -> str:
        """Return the state on the stream's record; its log is there a moment before it."""
        state: Any = self.redis.hget(redis_keys.stream_key(stream_id), "state")
        return str((state or b"").decode())

    def wait_for_state(self, stream_id: str, *states: str) -> None:
        """Wait until the stream's record shows one of these states."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (state := self.state(stream_id)) not in states:
            assert time.monotonic() < deadline, f"{stream_id} is {state}, not {states}"
            time.sleep(0.02)

    def owners(self, stream_id: str) -> list[int]:
        """Return the epochs of the stream's owners: one more with every suspension, or takeover."""
        return [entry.epoch for entry in self.entries(stream_id) if isinstance(entry, Started)]

    def wait_until_idle(self, deployment: str) -> WorkerInfo:
        """Return the registration of the deployment's worker once its engine runs nothing."""
        return self.wait_for_worker(deployment, lambda info: not info.num_requests_running + info.num_requests_waiting)

    def wait_for_worker(self, deployment: str, found: Callable[[WorkerInfo], bool]) -> WorkerInfo:
        """Return the registration of the deployment's worker once it is as wanted.

        Workers rewrite their registration with every renewal (1 s) and announce only changes of state, so this looks
        again in between.
        """
        info: WorkerInfo | None = None
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self.redis.pubsub() as channel:  # type: ignore[no-untyped-call]
            channel.subscribe(redis_keys.fleet_channel())
            while time.monotonic() < deadline:  # and not so many announcements: some tests have a lot of them
                rows: Any = self.redis.hgetall(redis_keys.workers_key())
                for raw in rows.values():
                    info = codec.decode(raw, WorkerInfo)
                    if info.deployment == deployment and found(info):
                        return info
                channel.get_message(timeout=0.2)
        raise AssertionError(f"no worker of {deployment} is as wanted after {DEADLINE_SECONDS} s: {info}")


def _flat(rows: Any) -> Any:
    """Return (id, fields) pairs; RESP3 nests them once more."""
    return rows[0] if rows and isinstance(rows[0], list) and isinstance(rows[0][0], list | tuple) else rows
