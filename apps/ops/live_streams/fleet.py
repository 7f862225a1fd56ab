"""Workers and gateways as they say they are, for whoever drains them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from apps.tenants.live_state import redis_client
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import GatewayInfo, WorkerInfo, WorkerState
from headrace_wire.functions import Reply

Info = TypeVar("Info", WorkerInfo, GatewayInfo)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What was alive at one moment, by incarnation."""

    workers: dict[str, WorkerInfo]
    gateways: dict[str, GatewayInfo]
    at: datetime
    """By Redis' clock."""
    suspended: dict[str, int]
    """Streams that wait for their readers to come on: since when, Unix milliseconds."""

    def others_ready(self, worker: WorkerInfo) -> list[WorkerInfo]:
        """Returns who else takes streams of a worker's deployment."""
        return [
            other
            for other in self.workers.values()
            if other.deployment == worker.deployment
            and other.incarnation != worker.incarnation
            and other.state is WorkerState.READY
        ]

    def other_gateways(self, incarnation: str) -> list[GatewayInfo]:
        """Returns who else takes requests."""
        gateways = self.gateways.values()
        return [one for one in gateways if one.incarnation != incarnation and one.state is WorkerState.READY]


def fleet_read(*, most_suspended: int = 0) -> Fleet:
    """Reads who is alive, and the streams that were suspended longest; one round trip.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    pipeline = redis_client().pipeline(transaction=False)
    pipeline.hgetall(redis_keys.workers_key())
    pipeline.hgetall(redis_keys.gateways_key())
    pipeline.zrangebyscore(redis_keys.incarnations_key(), "-inf", "+inf", withscores=True)
    pipeline.time()
    pipeline.zrange(redis_keys.suspended_key(), 0, most_suspended - 1 if most_suspended else 0, withscores=True)
    reply: Reply = pipeline.execute()
    workers, gateways, leases, (seconds, microseconds), suspended = reply
    now_ms = seconds * 1000 + microseconds // 1000
    alive = {name for name, expiry in leases if expiry > now_ms}
    return Fleet(
        _read(workers, alive, WorkerInfo),
        _read(gateways, alive, GatewayInfo),
        datetime.fromtimestamp(now_ms / 1000, UTC),
        {name.decode(): int(since) for name, since in suspended},
    )


def _read(rows: dict[bytes, bytes], alive: set[bytes], kind: type[Info]) -> dict[str, Info]:
    found: dict[str, Info] = {}
    for name, raw in sorted(rows.items()):
        if name not in alive:
            continue
        try:
            found[name.decode()] = codec.decode(raw, kind)
        except msgspec.DecodeError:
            continue  # of another release; `fleet_mirror` says so in the log
    return found
