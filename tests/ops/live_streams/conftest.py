"""A fleet on paper: registrations, streams and their logs in Redis, without processes behind them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import GatewayInfo, WorkerInfo, WorkerState
from headrace_wire.functions import Functions, Reply
from headrace_wire.guard_policy import GuardTerms
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import ControlMessage, Delta, Ended, GenerateRequest, SamplingParams, StreamState
from headrace_wire.redis_client import connect
from headrace_wire.request_queue import RequestQueue
from headrace_wire.token_log import Append, TokenLog

LEASE_SECONDS = 600
GATEWAY, OTHER_GATEWAY = "gateway-1", "gateway-2"

Result = TypeVar("Result")


class PaperFleet:
    """Every call is complete when it returns."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url

    def worker(self, incarnation: str, deployment: str = "tiny", **fields: object) -> WorkerInfo:
        """Register a worker that is ready, or as `fields` say."""
        info = WorkerInfo(incarnation, deployment, "simulated", WorkerState.READY, "host", 7, time.time())
        info = msgspec.structs.replace(info, **fields)
        self._register(redis_keys.workers_key(), incarnation, codec.encode(info))
        return info

    def gateway(self, incarnation: str = GATEWAY, **fields: object) -> None:
        """Register a gateway, likewise."""
        info = GatewayInfo(incarnation, WorkerState.READY, "host", 8, time.time(), 3, 5, 2)
        info = msgspec.structs.replace(info, **fields)
        self._register(redis_keys.gateways_key(), incarnation, codec.encode(info))

    def admit(
        self, count: int = 1, *, tenant_id: str = "a" * 32, deployment: str = "tiny", window: int = 0
    ) -> list[str]:
        """Put streams into the queue."""

        async def admit(redis: "Redis") -> list[str]:
            functions = Functions(redis)
            log, queue = TokenLog(redis, functions), RequestQueue(redis, functions)
            names = [new_stream_id() for _ in range(count)]
            for name in names:
                request = GenerateRequest(
                    name, tenant_id, deployment, SamplingParams(max_tokens=8), "salt", guard=GuardTerms(), window=window
                )
                terms = queue.admit_call(request, queue_limit=10_000, queue_timeout_seconds=600)
                await functions.call_many([log.open_call(name, readers=[GATEWAY]), terms])
            return names

        return self._run(admit)

    def claim(self, worker: str, count: int, *, deployment: str = "tiny", tokens: int = 0) -> list[str]:
        """Have a worker take streams, and write so many tokens to each."""

        async def claim(redis: "Redis") -> list[str]:
            functions = Functions(redis)
            log, queue = TokenLog(redis, functions), RequestQueue(redis, functions)
            claimed = await queue.claim(worker, deployment=deployment, want=count)
            for one in claimed:
                if tokens:
                    delta = Delta(one.stream_id, one.epoch, tokens, tokens, "secret words")
                    await log.append([Append(delta, list(range(tokens)))])
            return [one.stream_id for one in claimed]

        return self._run(claim)

    def mark(self, stream_id: str, state: StreamState, reason: str) -> None:
        """Say of an owned stream that it is held, or suspend it."""

        async def mark(redis: "Redis") -> None:
            queue = RequestQueue(redis, Functions(redis))
            record = await queue.record(stream_id)
            owner: Reply = await redis.hget(redis_keys.stream_key(stream_id), "owner")
            assert record is not None
            if state is StreamState.HELD:
                await queue.mark([(stream_id, record.epoch, state, reason)])
                return
            await queue.suspend(
                stream_id,
                epoch=record.epoch,
                incarnation=owner.decode(),
                deployment=record.deployment,
                credit=record.credit,
                reason=reason,
            )

        self._run(mark)

    def orders(self, incarnation: str) -> list[ControlMessage]:
        """Return what a process was told."""

        async def orders(redis: "Redis") -> list[ControlMessage]:
            rows: Reply = await redis.xrange(redis_keys.control_key(incarnation))
            return [codec.decode_control(fields[b"d"]) for _, fields in rows if fields[b"d"]]

        return self._run(orders)

    def ended(self, stream_id: str) -> Ended | None:
        """Return a stream's terminal entry."""

        async def ended(redis: "Redis") -> Ended | None:
            tail = await TokenLog(redis, Functions(redis)).tail(stream_id)
            return tail if isinstance(tail, Ended) else None

        return self._run(ended)

    def _register(self, key: str, incarnation: str, info: bytes) -> None:
        async def register(redis: "Redis") -> None:
            queue = RequestQueue(redis, Functions(redis))
            if await redis.zscore(redis_keys.incarnations_key(), incarnation) is None:
                channels = [redis_keys.control_key(incarnation)]
                await queue.enlist(incarnation, lease_seconds=LEASE_SECONDS, channels=channels)
            await redis.hset(key, incarnation, info)

        self._run(register)

    def _run(self, work: Callable[["Redis"], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            redis = connect(self._url)
            try:
                return await work(redis)
            finally:
                await redis.aclose()

        return asyncio.run(run())


@pytest.fixture
def paper(redis_url: str, live_redis: SyncRedis) -> PaperFleet:
    """An empty one, in the Redis that the Django side uses."""
    assert live_redis.dbsize() == 0
    return PaperFleet(redis_url)
