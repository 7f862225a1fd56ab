"""Calls over a link: as over redis-py, and again after the connection was cut."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from headrace_wire import redis_keys
from headrace_wire.linked_functions import LinkedFunctions

KEYS = [redis_keys.incarnations_key()]


@pytest.fixture
async def functions(redis_url: str) -> AsyncIterator[LinkedFunctions]:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        await redis.function_flush()
        functions = LinkedFunctions(redis, redis_url)
        yield functions
        await functions.aclose()


async def enlist(functions: LinkedFunctions, name: str) -> None:
    await functions.call("enlist", KEYS, [name, 60_000])


async def test_an_unknown_library_is_loaded(functions: LinkedFunctions) -> None:
    await asyncio.gather(*[enlist(functions, f"worker-{n}") for n in range(5)])
    assert await functions._redis.zcard(KEYS[0]) == 5


async def test_several_calls_answer_in_order(functions: LinkedFunctions) -> None:
    await enlist(functions, "worker-1")
    claim = ("claim", ["x:queue:m", KEYS[0], "assigned", "record:"])
    replies = await functions.call_many([(*claim, ["worker-1", 1]), (*claim, ["nobody", 1])])
    assert replies == [[], b"lost"]


async def test_no_calls_are_answered_at_once_and_those_after_them_too(functions: LinkedFunctions) -> None:
    async with asyncio.timeout(30):
        assert await functions.call_many([]) == []
        await enlist(functions, "worker-1")
    assert await functions._redis.zcard(KEYS[0]) == 1


async def test_a_failed_call_raises(functions: LinkedFunctions) -> None:
    with pytest.raises(ResponseError):
        await functions.call("claim", [], [])


async def test_a_cut_connection_is_followed_by_another(functions: LinkedFunctions) -> None:
    await enlist(functions, "worker-1")
    own = await functions._redis.client_id()
    for client in await functions._redis.client_list():
        if int(client["id"]) != own:
            await functions._redis.client_kill_filter(_id=client["id"])
    try:
        await enlist(functions, "worker-2")
    except RedisError:  # it was under way, or the end was not seen yet
        await enlist(functions, "worker-2")
    assert await functions._redis.zcard(KEYS[0]) == 2
