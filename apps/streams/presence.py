"""This gateway in the fleet: what it says of itself, and the orders that it gets."""

import os
import socket
import time
from collections.abc import Mapping, Sequence

import structlog
from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import GatewayInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.messages import Drain

log = structlog.get_logger(__name__)


class Presence:
    """One gateway's entry; `show` is called with every renewal of the lease."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._started_at = time.time()
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._incarnation, self._last = "", "0"
        self.is_alone = True
        """No other gateway is there, as far as was seen with the last entry."""

    async def show(
        self,
        incarnation: str,
        *,
        is_draining: bool,
        streams: int,
        connections: int,
        websockets: int,
        readers: Mapping[str, int],
    ) -> bool:
        """Rewrite the entry; True when an operator wants this gateway to end.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        if incarnation != self._incarnation:
            self._incarnation, self._last = incarnation, "0"
        state = WorkerState.DRAINING if is_draining else WorkerState.READY
        info = GatewayInfo(
            *(incarnation, state, self._host, self._pid, self._started_at, streams, connections, websockets),
            readers=dict(readers),
        )
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hset(redis_keys.gateways_key(), incarnation, codec.encode(info))
        pipeline.xrange(redis_keys.control_key(incarnation), min=f"({self._last}")
        pipeline.hlen(redis_keys.gateways_key())
        reply: Reply = await pipeline.execute()
        _, entries, gateways = reply
        self.is_alone = gateways <= 1
        if entries:
            self._last = entries[-1][0].decode()
        wishes = [self._wants_end(fields[b"d"]) for _, fields in entries]
        return any(wishes)

    async def bury(self, incarnations: Sequence[str]) -> None:
        """Take entries out of gateways that are gone."""
        if incarnations:
            await self._redis.hdel(redis_keys.gateways_key(), *incarnations)

    def _wants_end(self, raw: bytes) -> bool:
        if not raw:
            return False  # the entry that created the channel
        try:
            message = codec.decode_control(raw)
        except codec.DecodeError:
            log.warning("unknown_control_message", size=len(raw))
            return False
        if isinstance(message, Drain):
            log.info("gateway_told_to_drain", reason=message.reason)
        return isinstance(message, Drain)
