"""What a sweep frees, on a real Redis beside a running gateway; and that it leaves alone what somebody needs."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from apps.streams.garbage import Freed, garbage_collect
from apps.streams.gateway import Gateway
from apps.streams.metrics import GARBAGE_FREED
from headrace_wire import redis_keys
from headrace_wire.functions import Reply
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import AnyLogEntry, Delta, Ended, StreamState
from headrace_wire.token_log import Append

from .conftest import WORKER, admit, wait_for_state

LOST = "worker-lost"


async def exist(*names: str) -> set[str]:
    return set(names)


async def sweep(gateway: Gateway, *deployments: str) -> Freed:
    return await garbage_collect(gateway.redis, deployments=lambda: exist(*deployments))


async def assign_to_nobody(gateway: Gateway, stream_id: str) -> None:
    """A stream whose owner is on no list of leases."""
    await gateway.queue.enlist(LOST, lease_seconds=60, channels=[])
    await admit(gateway, stream_id)
    (claimed,) = await gateway.queue.claim(LOST, deployment="sim", want=1)
    await gateway.token_log.append([Append(Delta(stream_id, claimed.epoch, 3, 3, "abc"), token_ids=[1, 2, 3])])
    await gateway.redis.zrem(redis_keys.incarnations_key(), LOST)


async def state_of(gateway: Gateway, stream_id: str) -> StreamState | None:
    record = await gateway.queue.record(stream_id)
    return record.state if record is not None else None


async def log_of(gateway: Gateway, stream_id: str) -> list[AnyLogEntry]:
    return await gateway.token_log.read(stream_id) or []


async def test_streams_that_nobody_owns_go_to_another_worker(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await assign_to_nobody(gateway, stream_id)
    assert (await sweep(gateway, "sim")).owners_expired == 1
    await wait_for_state(gateway, stream_id, StreamState.QUEUED)
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=5)
    assert (claimed.stream_id, claimed.attempt) == (stream_id, 2)
    assert not await gateway.redis.exists(redis_keys.assigned_key(LOST))


async def test_a_sweep_that_died_on_the_way_is_continued(gateway: Gateway) -> None:
    waiting, lost = [new_stream_id() for _ in range(3)], new_stream_id()
    await assign_to_nobody(gateway, lost)
    for stream_id in waiting:
        await admit(gateway, stream_id, deployment="gone")

    async def die() -> set[str]:
        raise RedisConnectionError("lost")

    with pytest.raises(RedisConnectionError):
        await garbage_collect(gateway.redis, deployments=die)
    freed = await sweep(gateway, "sim")
    assert freed.streams_ended == 3
    await wait_for_state(gateway, lost, StreamState.QUEUED)
    assert await sweep(gateway, "sim") == Freed()


async def test_who_waits_for_a_deleted_deployment_is_told(gateway: Gateway) -> None:
    stream_id, other = new_stream_id(), new_stream_id()
    await admit(gateway, stream_id, deployment="gone")
    await admit(gateway, other)
    subscription = gateway.delivery.subscribe(stream_id, read_log=True)
    before = GARBAGE_FREED.labels("streams_ended")._value.get()
    freed = await sweep(gateway, "sim")
    assert (freed.streams_ended, freed.queues) == (1, 2)
    assert freed.bytes > 0, "the bell"
    assert GARBAGE_FREED.labels("streams_ended")._value.get() == before + 1
    (ended,) = await asyncio.wait_for(subscription.next(), 30)
    subscription.close()
    assert isinstance(ended, Ended)
    assert ended.error is not None
    assert ended.error.code == "model_not_found"
    assert await state_of(gateway, stream_id) is StreamState.FAILED
    assert await state_of(gateway, other) is StreamState.QUEUED
    for key in (redis_keys.waiting_key("gone"), redis_keys.bell_key("gone")):
        assert not await gateway.redis.exists(key)


async def test_a_queue_entry_without_a_record_goes(gateway: Gateway) -> None:
    await gateway.redis.sadd(redis_keys.waiting_key("gone"), new_stream_id())
    assert (await sweep(gateway, "sim")).streams_ended == 0
    assert not await gateway.redis.exists(redis_keys.waiting_key("gone"))


async def test_channels_of_the_dead_go_and_those_of_the_living_stay(gateway: Gateway) -> None:
    redis = gateway.redis
    dead = [redis_keys.control_key("worker-dead"), redis_keys.delivery_key("gateway-dead")]
    alive = [redis_keys.control_key(WORKER), redis_keys.delivery_key(gateway.incarnation)]
    for key in dead:
        await redis.xadd(key, {"d": b""})
    await redis.persist(alive[0])
    freed = await sweep(gateway, "sim")
    assert (freed.channels, freed.keys_limited) == (2, 0)
    assert await redis.exists(*dead) == 0
    assert await redis.exists(*alive) == 2


async def test_keys_of_streams_get_a_limit(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    keys = [redis_keys.log_key(stream_id), redis_keys.stream_key(stream_id), redis_keys.readers_key(stream_id)]
    for key in keys:
        await gateway.redis.persist(key)
    assert (await sweep(gateway, "sim")).keys_limited == 3
    for key in keys:
        ttl: Reply = await gateway.redis.ttl(key)
        assert ttl > 0
    assert len(await log_of(gateway, stream_id)) == 1


async def test_work_in_progress_is_left_alone(gateway: Gateway) -> None:
    running, waiting = new_stream_id(), new_stream_id()
    await admit(gateway, running)
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    await admit(gateway, waiting)
    assert await sweep(gateway, "sim") == Freed()
    assert await state_of(gateway, running) is StreamState.RUNNING
    assert await state_of(gateway, waiting) is StreamState.QUEUED
    renewal = await gateway.queue.renew(WORKER, lease_seconds=60, owned=[(running, claimed.epoch, 0)], channels=[])
    assert not renewal.lost
