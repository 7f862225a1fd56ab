"""A gateway in the fleet: others see how it does, and an operator's order ends it as a signal would."""

import asyncio
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from apps.streams.detachment import Departure
from apps.streams.gateway import Gateway
from headrace_wire import codec, redis_keys
from headrace_wire.draining import NotThereError, drain_gateway
from headrace_wire.fleet import GatewayInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.messages import Cancel
from headrace_wire.snapshot import DetachedPolicy

WAIT_SECONDS = 30.0


async def shown(redis: "Redis", found: Callable[[GatewayInfo], bool] = lambda _: True) -> GatewayInfo:
    """Return the one gateway's entry as soon as it is as wanted."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            rows: Reply = await redis.hgetall(redis_keys.gateways_key())
            infos = [codec.decode(raw, GatewayInfo) for raw in rows.values()]
            if infos and found(infos[0]):
                return infos[0]
            await asyncio.sleep(0.05)


async def test_it_shows_itself_until_it_ends(gateway: Gateway) -> None:
    gateway.server_load = lambda: (7, 3)
    info = await shown(gateway.redis, lambda info: info.connections == 7)
    assert (info.incarnation, info.websockets, info.streams) == (gateway.incarnation, 3, 0)
    gateway.draining = True
    assert (
        await shown(gateway.redis, lambda info: info.state is WorkerState.DRAINING)
    ).incarnation == gateway.incarnation


async def test_it_tells_how_many_read_where_that_is_not_one(gateway: Gateway) -> None:
    alone, *shared = [gateway.delivery.subscribe(stream_id) for stream_id in ("strm-1", "strm-2", "strm-2", "strm-2")]
    gateway.detachment.departed(
        Departure("strm-3", "a" * 32, DetachedPolicy.FINISH, 600.0, 0), gateway=gateway.incarnation
    )
    await shown(gateway.redis, lambda info: info.readers == {"strm-2": 3, "strm-3": 0})
    gateway.detachment.returned("strm-3")
    for one in shared[:2]:
        one.close()
    assert (await shown(gateway.redis, lambda info: not info.readers)).streams == 2
    for one in (alone, *shared):
        one.close()


async def test_an_order_ends_it_once(gateway: Gateway) -> None:
    ended = asyncio.Event()
    calls: list[int] = []

    def leave() -> None:
        calls.append(1)
        ended.set()

    gateway.leave = leave
    key = redis_keys.control_key(gateway.incarnation)
    await gateway.redis.xadd(key, {"d": codec.encode(Cancel("strm-0", "client"))}, id="1-*")
    await gateway.redis.xadd(key, {"d": b"\x00 not a message"}, id="1-*")
    await drain_gateway(gateway.redis, gateway.incarnation, reason="a test")
    async with asyncio.timeout(WAIT_SECONDS):
        await ended.wait()
    before = await gateway.redis.hget(redis_keys.gateways_key(), gateway.incarnation)
    await gateway.redis.hdel(redis_keys.gateways_key(), gateway.incarnation)
    await shown(gateway.redis)  # another look at its orders
    assert before is not None
    assert calls == [1]


async def test_one_that_has_ended_is_not_shown(gateway: Gateway, redis_url: str) -> None:
    await shown(gateway.redis)
    await gateway.stop()
    async with Redis.from_url(redis_url) as redis:
        assert await redis.hgetall(redis_keys.gateways_key()) == {}
        await redis.delete(redis_keys.control_key(gateway.incarnation))
        with pytest.raises(NotThereError):
            await drain_gateway(redis, gateway.incarnation, reason="a test")
