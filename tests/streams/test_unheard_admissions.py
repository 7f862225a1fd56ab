"""Callers who leave while Redis has their request: it may be admitted all the same, and nobody reads its stream."""

import asyncio
from contextlib import suppress

from redis.asyncio import Redis

from apps.streams.gateway import Gateway
from apps.streams.services import StreamOptions, stream_attach, stream_start
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import ChatTurn, Ended, SamplingParams, StreamState
from headrace_wire.request_queue import Idempotency
from tests.support.snapshots import KEY_A

from .patience import PATIENCE, until

HELD_MS = 60_000


async def left_unheard(gateway: Gateway, redis_url: str, *, idempotency: Idempotency | None = None) -> str:
    """Have a caller leave while Redis writes nothing, which then goes on; return the stream that it never heard of."""
    stream_id = new_stream_id()
    caller = gateway.config.authenticate(KEY_A.reveal())
    async with Redis.from_url(redis_url) as redis:
        await redis.client_pause(HELD_MS, all=False)
        try:
            asking = asyncio.create_task(
                stream_start(
                    gateway=gateway,
                    caller=caller,
                    deployment=gateway.config.deployment(caller, "sim"),
                    conversation=[ChatTurn("user", "hello")],
                    sampling=SamplingParams(max_tokens=2000),
                    options=StreamOptions(stream_id=stream_id, idempotency=idempotency),
                )
            )
            async with asyncio.timeout(PATIENCE):
                while not gateway.limit.generating:  # noqa: ASYNC110  it has its turn, and asks
                    await asyncio.sleep(0)
            for _turn in range(3):  # what goes together with others is written at the end of a turn
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            assert gateway.delivery.stream_ids() == []
        finally:
            await redis.client_unpause()

    async def is_admitted() -> bool:
        return await gateway.queue.record(stream_id) is not None

    await until(is_admitted)
    return stream_id


async def test_what_was_admitted_for_a_caller_who_had_left_is_ended(gateway: Gateway, redis_url: str) -> None:
    stream_id = await left_unheard(gateway, redis_url)

    async def is_over() -> bool:
        record = await gateway.queue.record(stream_id)
        return record is not None and record.state is StreamState.CANCELLED

    await until(is_over)
    assert isinstance(await gateway.token_log.tail(stream_id), Ended)
    assert await gateway.queue.waiting("sim") == 0
    assert gateway.limit.generating == 0


async def test_who_named_a_key_finds_its_stream(gateway: Gateway, redis_url: str) -> None:
    stream_id = await left_unheard(gateway, redis_url, idempotency=Idempotency("key", "body", 1))

    async def is_unread() -> bool:
        return gateway.detachment.is_waiting(stream_id)

    await until(is_unread)
    record = await gateway.queue.record(stream_id)
    assert record is not None
    assert record.state is StreamState.QUEUED
    caller = gateway.config.authenticate(KEY_A.reveal())
    subscription, _ = await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=0)
    assert not gateway.detachment.is_waiting(stream_id)
    subscription.close()


async def test_who_asks_again_before_redis_was_asked_keeps_its_stream(gateway: Gateway, redis_url: str) -> None:
    stream_id = await left_unheard(gateway, redis_url, idempotency=Idempotency("key", "body", 1))
    caller = gateway.config.authenticate(KEY_A.reveal())
    subscription, _ = await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=0)
    gateway._begin_unheard()
    assert not gateway.detachment.is_waiting(stream_id)
    subscription.close()
