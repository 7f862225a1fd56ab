from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.functions import Functions, Reply
from headrace_wire.messages import GenerateRequest, SamplingParams
from headrace_wire.redis_client import connect
from headrace_wire.request_queue import RequestQueue, Verdict
from headrace_wire.token_log import TokenLog

GATEWAY = "gateway-test"
WORKER = "worker-test"


@dataclass(frozen=True)
class Wire:
    """One Redis, the calls on it, an enlisted gateway and an enlisted worker."""

    redis: "Redis"
    functions: Functions
    log: TokenLog
    queue: RequestQueue

    async def admit(
        self, stream_id: str, *, deployment: str = "m", queue_limit: int = 10, queue_timeout_seconds: float = 60.0
    ) -> tuple[Verdict, int]:
        """Open the log and admit a request of tenant `t`."""
        request = GenerateRequest(
            stream_id, "t", deployment, SamplingParams(max_tokens=8), "salt", prompt_ids=b"\1\0\0\0"
        )
        calls = [
            self.log.open_call(stream_id, readers=[GATEWAY]),
            self.queue.admit_call(request, queue_limit=queue_limit, queue_timeout_seconds=queue_timeout_seconds),
        ]
        _, verdict = await self.functions.call_many(calls)
        admission = self.queue.parse_admission(verdict)
        return admission.verdict, admission.position

    async def delivered(self, gateway: str = GATEWAY) -> list[bytes]:
        """Return the payloads in a gateway's delivery stream; the first entry only creates it."""
        rows: Reply = await self.redis.xrange(redis_keys.delivery_key(gateway))
        return [fields[b"d"] for _, fields in rows][1:]


@pytest.fixture
async def wire(redis_url: str) -> AsyncIterator[Wire]:
    redis = connect(redis_url)
    await redis.flushall()
    functions = Functions(redis)
    wire = Wire(redis, functions, TokenLog(redis, functions), RequestQueue(redis, functions))
    await wire.queue.enlist(GATEWAY, lease_seconds=60, channels=[redis_keys.delivery_key(GATEWAY)])
    await wire.queue.enlist(WORKER, lease_seconds=60, channels=[redis_keys.control_key(WORKER)])
    yield wire
    await redis.aclose()
