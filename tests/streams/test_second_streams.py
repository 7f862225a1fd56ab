"""Who shared a stream that failed and has one of its own instead: over SSE, and where it cannot have that after all."""

import asyncio

import pytest

from apps.streams import runtime
from headrace_wire import redis_keys
from headrace_wire.messages import Delta, Ended, FinishReason, Started, StreamError, StreamState, Timings, Usage
from headrace_wire.token_log import Append

from .answers_desk import Desk
from .conftest import WORKER
from .patience import until
from .sse_client import SseClient

TOKENS = 40
"""Of one entry: a quarter of the window is soon read."""
ASKED = {"model": "sim", "temperature": 0, "max_tokens": 2000}


async def test_what_is_read_of_the_second_stream_lets_that_one_go_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_gateway", desk.gateway)
    log, host, rider = desk.gateway.token_log, SseClient(**ASKED), SseClient(**ASKED)
    asking = [asyncio.create_task(host.ask())]
    (claimed,) = await desk.claim_one()
    asking.append(asyncio.create_task(rider.ask()))

    async def both_read() -> bool:
        return [one.stream_id for one in desk.gateway.delivery.subscriptions()] == [claimed.stream_id] * 2

    await until(both_read)
    await desk.fail(claimed)
    (again,) = await desk.claim_one()
    name, epoch = again.stream_id, again.epoch
    first = Append(Delta(name, epoch, 1, 1, "w0"), token_ids=[1])
    await log.append([Append(Started(name, epoch, 0, WORKER, 1)), first])
    await rider.has("w0")
    for number in range(3):
        at = 1 + number * TOKENS
        delta = Delta(name, epoch, at + TOKENS, TOKENS, f"w{number + 1}")
        await log.append([Append(delta, token_ids=[1] * TOKENS, token_ids_at=at)])
        await rider.has(f"w{number + 1}")

    async def has_credit() -> bool:
        record = await desk.gateway.queue.record(name)
        assert record is not None
        return record.credit > again.request.window

    await until(has_credit)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_a_second_stream_that_its_caller_cannot_be_led_to_is_taken_back(desk: Desk) -> None:
    host, rider = await desk.ask(), await desk.ask()
    (claimed,) = await desk.claim()
    desk.leave(host)
    reading = asyncio.create_task(desk.read(rider))
    gateway, redis = desk.gateway, desk.gateway.redis
    error = StreamError("engine_error", "The engine failed.")
    failed = (StreamState.FAILED, FinishReason.ERROR, None, Usage(), Timings(), error)
    ended = Ended(claimed.stream_id, claimed.epoch, 1, *failed)
    await gateway.token_log.append([Append(ended, log_ttl_seconds=3600)])
    await gateway.queue.settle(
        claimed.stream_id, epoch=claimed.epoch, incarnation=WORKER, state=ended.state, log_ttl_seconds=3600
    )
    await redis.set(redis_keys.stream_key(rider.stream_id), "no record")  # it cannot say where its caller is led
    await gateway.token_log.publish([ended])
    with pytest.raises(AssertionError, match="engine_error"):
        await reading

    async def nobody_waits() -> bool:
        return await gateway.queue.waiting("sim") == 0

    await until(nobody_waits)
    assert await desk.claim() == []
    assert (gateway.limit.open, gateway.limit.generating) == (0, 0)
