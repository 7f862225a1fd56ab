"""A bell wakes who waits for it, and nobody else hears its ring."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import RedisError

from headrace_wire import redis_keys
from headrace_wire.bell import Bell
from headrace_wire.functions import Reply
from headrace_wire.ids import new_stream_id

from .conftest import WORKER, Wire

LIMIT_SECONDS = 30


@pytest.fixture
async def bell(redis_url: str) -> AsyncIterator[Bell]:
    bell = Bell(redis_url)
    yield bell
    bell.close()


async def waiting_clients(wire: Wire, count: int) -> list[str]:
    """Return the ids of those that wait for a bell, once there are so many."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            clients: Reply = await wire.redis.client_list()
            found = [client["id"] for client in clients if client["cmd"] == "blpop"]
            if len(found) == count:
                return found


async def test_a_waiting_worker_is_woken_by_admission(wire: Wire, bell: Bell) -> None:
    waiting = asyncio.create_task(bell.wait("m", WORKER, timeout_seconds=10))
    await waiting_clients(wire, 1)
    await wire.admit(new_stream_id())
    assert await asyncio.wait_for(waiting, LIMIT_SECONDS)


async def test_a_worker_is_woken_by_its_own_bell(wire: Wire, bell: Bell) -> None:
    waiting = asyncio.create_task(bell.wait("m", WORKER, timeout_seconds=10))
    await wire.queue.wake(WORKER)
    assert await asyncio.wait_for(waiting, LIMIT_SECONDS)


async def test_nobody_rings(wire: Wire, bell: Bell) -> None:
    assert not await bell.wait("m", WORKER, timeout_seconds=0.01)
    await wire.redis.lpush(redis_keys.bell_key("m"), "1")
    assert await bell.wait("m", WORKER, timeout_seconds=10), "the same connection hears the next one"


async def test_who_has_given_up_takes_no_ring(wire: Wire, bell: Bell) -> None:
    waiting = asyncio.create_task(bell.wait("m", WORKER, timeout_seconds=0))
    await waiting_clients(wire, 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await waiting_clients(wire, 0)
    await wire.admit(new_stream_id())
    assert await wire.redis.llen(redis_keys.bell_key("m")) == 1
    assert await bell.wait("m", WORKER, timeout_seconds=10)


async def test_a_connection_that_was_lost_is_told_and_replaced(wire: Wire, bell: Bell) -> None:
    waiting = asyncio.create_task(bell.wait("m", WORKER, timeout_seconds=0))
    (number,) = await waiting_clients(wire, 1)
    await wire.redis.client_kill_filter(_id=number)
    with pytest.raises(RedisError):
        await waiting
    await wire.admit(new_stream_id())
    assert await bell.wait("m", WORKER, timeout_seconds=10)
