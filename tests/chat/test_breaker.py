"""How the chat's answers end reaches the circuit breaker, whichever gateway the page reads them from."""

import asyncio
import time
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient

from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_update
from apps.streams.gateway import Gateway
from apps.streams.latency_reading import reading_of_resumed
from apps.tenants.snapshots import snapshot_publish
from headrace_wire import redis_keys
from headrace_wire.functions import Reply
from headrace_wire.latency.summary import SeriesKey
from headrace_wire.messages import Ended, FinishReason, StreamError, StreamState
from tests.support.processes import PATIENCE_SECONDS

from .conftest import HandWorker, wait_for_end
from .test_views import send

BROKEN = StreamError("engine_error", "The engine broke.")


@pytest.fixture
async def guarded(gateway: Gateway, deployment: ModelDeployment) -> ModelDeployment:
    deployment.is_breaker_on, deployment.breaker_min_ends, deployment.breaker_absent_seconds = True, 2, 0
    await sync_to_async(deployment_update)(deployment=deployment)
    await sync_to_async(snapshot_publish)()
    await gateway.config_reader.refresh()
    return deployment


async def counted(gateway: Gateway, deployment: ModelDeployment) -> dict[str, int]:
    """Return what the breaker has counted: `o`, finished, and `f`, failed by workers."""
    await gateway.unread_ends.look()
    await gateway.breakers.look(gateway.config.with_breaker)
    fields: Reply = await gateway.redis.hgetall(redis_keys.breaker_key(deployment.pk.hex))
    totals: dict[str, int] = {}
    for name, value in fields.items():
        kind, _, slot = name.decode().partition(":")
        if slot:
            totals[kind] = totals.get(kind, 0) + int(value)
    return totals


async def begin(client: AsyncClient, **fields: Any) -> str:
    _, sent = await send(client, **fields)
    return str(sent["answer"]["stream_id"])


async def until_counted(gateway: Gateway, deployment: ModelDeployment, totals: dict[str, int]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await counted(gateway, deployment) != totals:  # noqa: ASYNC110  # its tick may be at it
            await asyncio.sleep(0.02)


async def test_an_end_that_nobody_reads_here_counts_once(
    member_client: AsyncClient, gateway: Gateway, worker: HandWorker, guarded: ModelDeployment
) -> None:
    stream_id = await begin(member_client)
    claimed = await worker.claim()
    seq = await worker.write(claimed, ["1"])
    assert await counted(gateway, guarded) == {}
    await worker.end(claimed, seq, state=StreamState.FAILED, reason=FinishReason.ERROR, error=BROKEN)
    await wait_for_end(gateway, stream_id)
    await until_counted(gateway, guarded, {"f": 1})
    # The page comes after all, to this gateway.
    key = SeriesKey(guarded.name, "t", "")
    reading, _ = reading_of_resumed(gateway.latencies, key, stream_id, arrived_at=time.perf_counter())
    ended = await gateway.token_log.tail(stream_id)
    assert isinstance(ended, Ended)
    reading.close(ended, 0)
    assert await counted(gateway, guarded) == {"f": 1}


async def test_an_end_that_is_read_here_counts_once(
    member_client: AsyncClient, gateway: Gateway, worker: HandWorker, guarded: ModelDeployment
) -> None:
    stream_id = await begin(member_client)
    key = SeriesKey(guarded.name, "t", "")
    reading, _ = reading_of_resumed(gateway.latencies, key, stream_id, arrived_at=time.perf_counter())
    subscription = gateway.delivery.subscribe(stream_id, read_log=True)
    claimed = await worker.claim()
    await worker.end(claimed, await worker.write(claimed, ["1"]))
    ended = await gateway.token_log.tail(stream_id)
    assert isinstance(ended, Ended)
    reading.close(ended, 0)
    subscription.close()
    assert await counted(gateway, guarded) == {"o": 1}


async def test_failures_that_another_gateway_reads_open_it(
    member_client: AsyncClient, gateway: Gateway, worker: HandWorker, guarded: ModelDeployment
) -> None:
    for _ in range(2):
        stream_id = await begin(member_client)
        claimed = await worker.claim()
        seq = await worker.write(claimed, ["1"])
        await worker.end(claimed, seq, state=StreamState.FAILED, reason=FinishReason.ERROR, error=BROKEN)
        await wait_for_end(gateway, stream_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while gateway.breakers.is_closed(gateway.config.with_breaker[0]):
            await counted(gateway, guarded)
