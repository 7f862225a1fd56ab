import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from apps.streams.gateway import Gateway
from headrace_wire import redis_keys
from headrace_wire.guard_policy import GuardTerms
from headrace_wire.messages import GenerateRequest, SamplingParams, StreamState
from tests.support.processes import PATIENCE_SECONDS
from tests.support.snapshots import publish_snapshot

from .answers_desk import Desk
from .draft_bench import Bench, started_bench

WORKER = "worker-test"


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[Gateway]:
    """A started gateway on an empty Redis with the test snapshot, and an enlisted worker that only exists by name."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        await publish_snapshot(redis)
    gateway = Gateway(redis_url=redis_url, secret_key="test")
    await gateway.start()
    await gateway.queue.enlist(WORKER, lease_seconds=60, channels=[redis_keys.control_key(WORKER)])
    yield gateway
    await gateway.stop()


async def admit(
    gateway: Gateway, stream_id: str, *, deployment: str = "sim", queue_timeout_seconds: float = 60, window: int = 0
) -> None:
    """Open the log and admit a request, past rendering."""
    request = GenerateRequest(
        stream_id,
        "a" * 32,
        deployment,
        SamplingParams(max_tokens=8),
        "salt",
        prompt_ids=b"\1\0\0\0",
        window=window,
        guard=GuardTerms(),
    )
    await gateway.functions.call_many(
        [
            gateway.token_log.open_call(stream_id, readers=[gateway.incarnation]),
            gateway.queue.admit_call(request, queue_limit=10, queue_timeout_seconds=queue_timeout_seconds),
        ]
    )


async def wait_for_state(gateway: Gateway, stream_id: str, state: StreamState) -> None:
    """Wait for what a gateway's own tick may be doing, or have done."""

    async def is_there() -> bool:
        record = await gateway.queue.record(stream_id)
        return record is not None and record.state is state

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await is_there():  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.02)


@pytest.fixture
async def desk(gateway: Gateway) -> Desk:
    desk = Desk(gateway, WORKER)
    await desk.keep()
    return desk


@pytest.fixture
async def bench(gateway: Gateway, tiny_model: Path) -> Bench:
    """A worker that computes drafts, on `gateway`."""
    return await started_bench(gateway, tiny_model, WORKER)
