"""Cancels of streams that somebody serves, and of what has no owner at all."""

from typing import Any

from headrace_wire import redis_keys
from headrace_wire.functions import Reply
from headrace_wire.ids import new_stream_id
from headrace_wire.request_queue import CancelOutcome

from .conftest import GATEWAY, WORKER, Wire


async def told(wire: Wire) -> int:
    """Return how many messages the worker got; its channel began with an entry of its own."""
    length: Reply = await wire.redis.xlen(redis_keys.control_key(WORKER))
    return int(length) - 1


async def test_one_that_is_not_forced_leaves_a_stream_to_its_owner(wire: Wire) -> None:
    taken, waiting = new_stream_id(), new_stream_id()
    await wire.admit(taken)
    (claimed,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    await wire.admit(waiting)
    outcomes = {
        stream_id: await wire.queue.cancel(
            stream_id, tenant_id="t", reason="late", incarnation=GATEWAY, is_forced=False
        )
        for stream_id in (taken, waiting)
    }
    assert outcomes[taken] == (CancelOutcome.RUNNING, claimed.epoch)
    assert outcomes[waiting][0] is CancelOutcome.QUEUED
    assert await told(wire) == 0
    assert not await wire.redis.hexists(redis_keys.stream_key(taken), "cancel")


async def test_a_record_without_an_owner_is_no_error(wire: Wire) -> None:
    """That of a caller who is given another one's stream."""
    stream_id = new_stream_id()
    record: dict[Any, Any] = {"tenant": "t", "state": "running", "epoch": "0", "rides": new_stream_id()}
    await wire.redis.hset(redis_keys.stream_key(stream_id), mapping=record)
    outcome, _ = await wire.queue.cancel(stream_id, tenant_id="t", reason="client", incarnation=GATEWAY)
    assert outcome is CancelOutcome.RUNNING
