"""Interventions on their way into Redis: handed over at once, written in batches, never waited for."""

import asyncio
import logging
from collections import deque

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire import redis_keys
from headrace_wire.interventions import Intervention

log = logging.getLogger(__name__)

KEPT_RECORDS = 100_000
"""In Redis, until a consumer has them; the oldest go first."""

WAITING_RECORDS = 10_000
"""In this process while Redis is away; the oldest go first, and are counted."""

BATCH_RECORDS = 256
RETRY_SECONDS = 1.0

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Intervention)


def decode_intervention(data: bytes) -> Intervention:
    """Read a record of the stream.

    Raises:
        msgspec.DecodeError: it is not one.
    """
    return _decoder.decode(data)


class InterventionLog:
    """Writes records until cancelled. Belongs to one event loop."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._waiting: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self.lost = 0
        """Records that had no room."""

    def put(self, record: Intervention) -> None:
        """Take a record."""
        if len(self._waiting) >= WAITING_RECORDS:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append(_encoder.encode(record))
        self._filled.set()

    async def run(self) -> None:
        """Write what comes; at the end, what is left."""
        try:
            while True:
                await self._filled.wait()
                try:
                    await self._write()
                except RedisError as error:
                    log.warning("interventions wait for redis: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self._write_last()

    async def _write_last(self) -> None:
        """Write what is left if Redis takes it at once: whoever ends must not wait for it, nor fail by it."""
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                await self._write()
        except (RedisError, TimeoutError) as error:
            self.lost += len(self._waiting)
            log.warning("interventions lost at the end: %d (%s)", len(self._waiting), error)

    async def _write(self) -> None:
        key = redis_keys.interventions_key()
        while self._waiting:
            batch = [self._waiting[i] for i in range(min(BATCH_RECORDS, len(self._waiting)))]
            async with self._redis.pipeline(transaction=False) as pipe:
                for data in batch:
                    pipe.xadd(key, {"d": data}, maxlen=KEPT_RECORDS, approximate=True)
                await pipe.execute()
            # Records that were put meanwhile are behind; ones that had no room are gone from the front.
            for data in batch:
                if self._waiting and self._waiting[0] is data:
                    self._waiting.popleft()
        self._filled.clear()
