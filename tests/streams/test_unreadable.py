"""What a gateway cannot read, since another release wrote it, keeps it from nothing else."""

from typing import Any

from apps.streams.gateway import Gateway
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import GenerateRequest, SamplingParams, StreamState
from headrace_wire.request_queue import MAX_ATTEMPTS
from tests.support.snapshots import publish_snapshot, simulated, snapshot

from .conftest import WORKER, admit, wait_for_state
from .patience import until

NONSENSE = b"\xc1 of another release"
DEAD = "gateway-dead"


async def leave_behind(gateway: Gateway, stream_id: str, **fields: Any) -> None:
    """Have a dead gateway leave a stream that waits."""
    record: dict[Any, Any] = {"tenant": "t", "deployment": "sim", "state": "queued", **fields}
    await gateway.redis.hset(redis_keys.stream_key(stream_id), mapping=record)
    await gateway.redis.zadd(redis_keys.deadlines_key(), {stream_id: 2**52})
    await gateway.redis.set(redis_keys.readers_key(stream_id), DEAD)
    await gateway.redis.zadd(redis_keys.left_behind_key(), {DEAD: 0})


async def until_renewed(gateway: Gateway) -> None:
    async def lease() -> float:
        expiry: Reply = await gateway.redis.zscore(redis_keys.incarnations_key(), gateway.incarnation)
        return float(expiry)

    before = await lease()

    async def is_renewed() -> bool:
        return await lease() > before

    await until(is_renewed)


async def test_a_stream_left_behind_is_passed_over(gateway: Gateway) -> None:
    await leave_behind(gateway, new_stream_id(), request=NONSENSE)

    async def is_looked_after() -> bool:
        return not await gateway.redis.exists(redis_keys.left_behind_key())

    await until(is_looked_after)
    await until_renewed(gateway)


async def test_a_step_that_fails_does_not_keep_the_lease_from_being_renewed(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    request = GenerateRequest(stream_id, "t", "sim", SamplingParams(max_tokens=8), "salt", prompt_ids=b"\1\0\0\0")
    await leave_behind(gateway, stream_id, request=codec.encode(request), credit="no number")

    async def is_adopted() -> bool:
        until_ms: Reply = await gateway.redis.zscore(redis_keys.left_behind_key(), DEAD)
        return float(until_ms) > 0

    await until(is_adopted)
    for _tick in range(2):
        await until_renewed(gateway)


async def test_a_record_that_cannot_be_settled_keeps_no_other_stream_of_the_dead_worker(gateway: Gateway) -> None:
    streams = [new_stream_id() for _ in range(2)]
    for stream_id in streams:
        await admit(gateway, stream_id)
        await gateway.redis.hset(redis_keys.stream_key(stream_id), "attempts", str(MAX_ATTEMPTS - 1))
    await gateway.queue.claim(WORKER, deployment="sim", want=2)
    await gateway.redis.hset(redis_keys.stream_key(streams[0]), "reserved", b"\xc1")
    await gateway.redis.hset(redis_keys.stream_key(streams[1]), "reserved", b"\xc1")
    await gateway.redis.zadd(redis_keys.incarnations_key(), {WORKER: 1})
    for stream_id in streams:
        await wait_for_state(gateway, stream_id, StreamState.FAILED)
    assert await gateway.redis.xlen(redis_keys.settlements_set_aside_key()) == 2


async def test_a_registration_hides_no_other(gateway: Gateway) -> None:
    for name in (f"{WORKER}-new", f"{WORKER}-old"):
        await gateway.queue.enlist(name, lease_seconds=60, channels=[])
    info = WorkerInfo(f"{WORKER}-old", "sim", "simulated", WorkerState.READY, "host", 1, 0.0)
    await gateway.redis.hset(redis_keys.workers_key(), f"{WORKER}-new", NONSENSE)
    await gateway.redis.hset(redis_keys.workers_key(), f"{WORKER}-old", codec.encode(info))
    await gateway.fleet.refresh()
    assert gateway.fleet.workers("sim") == [info]


async def test_a_configuration_changes_nothing_and_the_next_one_counts(gateway: Gateway) -> None:
    before = gateway.config
    await gateway.redis.hset(redis_keys.snapshot_key(), "data", NONSENSE)
    await gateway.redis.hset(redis_keys.snapshot_key(), "version", str(before.version + 1))
    await gateway.config_reader.refresh()
    assert gateway.config is before
    await publish_snapshot(gateway.redis, snapshot(before.version + 2, simulated("new")))

    async def is_read() -> bool:  # by its own task
        return gateway.config.version == before.version + 2

    await until(is_read)
