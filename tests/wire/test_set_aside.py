"""Settlements that always fail: set aside one by one, kept with all that a later settlement needs."""

import pytest
from redis.exceptions import OutOfMemoryError

from headrace_wire import redis_keys
from headrace_wire.admission import AdmissionTerms, Payer, Prices
from headrace_wire.functions import Call, Reply
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import FinishReason, GenerateRequest, SamplingParams, StreamState, Usage
from headrace_wire.request_queue import settle_all, settle_call, settle_set_aside

from .conftest import GATEWAY, WORKER, Wire

UNREADABLE = b"\xc1"


async def claimed(wire: Wire, count: int) -> list[tuple[str, int]]:
    terms = AdmissionTerms(1, 8, Prices(0, 0, 0), Payer(api_key_id="key-1"), band=1)
    for _ in range(count):
        request = GenerateRequest(
            new_stream_id(), "t", "m", SamplingParams(max_tokens=8), "salt", prompt_ids=b"\1\0\0\0"
        )
        calls = [
            wire.log.open_call(request.stream_id, readers=[GATEWAY]),
            wire.queue.admit_call(request, queue_limit=10, queue_timeout_seconds=60, terms=terms),
        ]
        await wire.functions.call_many(calls)
    return [(one.stream_id, one.epoch) for one in await wire.queue.claim(WORKER, deployment="m", want=count)]


def settlement(stream_id: str, epoch: int) -> Call:
    return settle_call(
        stream_id,
        epoch=epoch,
        incarnation=WORKER,
        state=StreamState.FINISHED,
        log_ttl_seconds=60,
        finish_reason=FinishReason.STOP,
        usage=Usage(1, 5),
    )


async def booked(wire: Wire) -> list[str]:
    rows: Reply = await wire.redis.xrange(redis_keys.usage_key())
    return [fields[b"stream"].decode() for _, fields in rows]


async def set_aside(wire: Wire) -> list[dict[bytes, bytes]]:
    rows: Reply = await wire.redis.xrange(redis_keys.settlements_set_aside_key())
    return [fields for _, fields in rows]


async def test_one_that_always_fails_holds_up_no_other(wire: Wire) -> None:
    first, poisonous, last = streams = await claimed(wire, 3)
    await wire.redis.hset(redis_keys.stream_key(poisonous[0]), "reserved", UNREADABLE)
    counted: list[None] = []
    for _ in range(2):  # it bears repetition
        calls = [settlement(*stream) for stream in streams]
        await settle_all(wire.functions, calls, set_aside=lambda: counted.append(None))
    assert await booked(wire) == [first[0], last[0]]
    assert len(counted) == 1
    (aside,) = await set_aside(wire)
    assert (aside[b"stream"].decode(), aside[b"completion"], aside[b"tenant"]) == (poisonous[0], b"5", b"t")
    assert b"unpack" in aside[b"problem"] or b"format" in aside[b"problem"]
    record = await wire.queue.record(poisonous[0])
    assert record is not None
    assert record.state is StreamState.FINISHED, "its readers see the end that it had"
    assert not await wire.redis.hexists(redis_keys.stream_key(poisonous[0]), "request")


async def test_it_is_settled_once_its_cause_is_mended_and_not_before(wire: Wire) -> None:
    ((stream_id, epoch),) = await claimed(wire, 1)
    key = redis_keys.stream_key(stream_id)
    good: Reply = await wire.redis.hget(key, "reserved")
    await wire.redis.hset(key, "reserved", UNREADABLE)
    await settle_all(wire.functions, [settlement(stream_id, epoch)], set_aside=lambda: None)
    assert await settle_set_aside(wire.redis, wire.functions) == (0, [stream_id])
    assert len(await set_aside(wire)) == 1
    record = await wire.queue.record(stream_id)
    assert record is not None
    assert record.state is StreamState.FINISHED
    await wire.redis.hset(key, "reserved", good)
    assert await settle_set_aside(wire.redis, wire.functions) == (1, [])
    assert (await booked(wire), await set_aside(wire)) == ([stream_id], [])
    assert await settle_set_aside(wire.redis, wire.functions) == (0, [])


async def test_what_the_server_refuses_of_everybody_is_not_set_aside(wire: Wire) -> None:
    ((stream_id, epoch),) = await claimed(wire, 1)
    await wire.redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(OutOfMemoryError):
            await settle_all(wire.functions, [settlement(stream_id, epoch)], set_aside=lambda: pytest.fail("it was"))
    finally:
        await wire.redis.config_set("maxmemory", "0")
    await settle_all(wire.functions, [settlement(stream_id, epoch)], set_aside=lambda: pytest.fail("it was"))
    assert await booked(wire) == [stream_id]


async def test_a_record_that_is_none_is_set_aside_too(wire: Wire) -> None:
    ((stream_id, epoch),) = await claimed(wire, 1)
    await wire.redis.delete(redis_keys.stream_key(stream_id))
    await wire.redis.set(redis_keys.stream_key(stream_id), "no record")
    await settle_all(wire.functions, [settlement(stream_id, epoch)], set_aside=lambda: None)
    (aside,) = await set_aside(wire)
    assert aside[b"stream"].decode() == stream_id
