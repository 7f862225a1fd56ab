"""Workers and waiting requests as Redis holds them, for ticks at times of the test's own."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from redis import Redis

from apps.deployments.autoscale.tick import autoscale_tick
from apps.tenants.live_state import call_function
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState

START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
TICK = 15


class Fleet:
    """The workers of the deployment “tiny”, ten places each, and a clock."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.now = START
        self.claims = 0

    def worker(self, incarnation: str, **values: Any) -> None:
        keys = [redis_keys.incarnations_key(), redis_keys.control_key(incarnation)]
        if self.redis.zscore(redis_keys.incarnations_key(), incarnation) is None:
            call_function("enlist", keys, [incarnation, 3_600_000])
        info = WorkerInfo(
            **{
                "incarnation": incarnation,
                "deployment": "tiny",
                "engine": "vllm",
                "state": WorkerState.READY,
                "host": "here",
                "pid": 4711,
                "started_at": 1.0,
                "max_num_seqs": 10,
                **values,
            }
        )
        self.redis.hset(redis_keys.workers_key(), incarnation, codec.encode(info))

    def gone(self, incarnation: str) -> None:
        self.redis.hdel(redis_keys.workers_key(), incarnation)

    def waiting(self, *streams: str) -> None:
        self.redis.delete(redis_keys.waiting_key("tiny"))
        if streams:
            self.redis.sadd(redis_keys.waiting_key("tiny"), *streams)

    def pace(self, *, claims: int, place_ms: float = 0.0, samples: int = 10) -> None:
        """Claims since the last call, and how long a place serves a stream."""
        self.claims += claims
        place = msgspec.msgpack.encode([place_ms, samples])
        self.redis.hset(redis_keys.pace_key("tiny"), mapping={"number": self.claims, "place": place})

    def told(self, incarnation: str) -> list[Any]:
        entries: Any = self.redis.xrange(redis_keys.control_key(incarnation))
        return [codec.decode_control(fields[b"d"]) for _, fields in entries if fields[b"d"]]

    def tick(self, seconds: float = TICK, **pace: Any) -> int:
        """Lets so much time go by, tick by tick; returns how many decisions were made."""
        made = 0
        for _ in range(round(seconds / TICK)):
            if pace:
                self.pace(**pace)
            made += autoscale_tick(now=self.now)
            self.now += timedelta(seconds=TICK)
        return made
