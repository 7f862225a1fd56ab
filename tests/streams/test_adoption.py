"""Streams whose only reader was at a gateway that died go by their tenant's policy, carried out by another gateway."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from apps.streams.credit_book import UNLIMITED
from apps.streams.gateway import Gateway
from apps.streams.services import StreamOptions, stream_attach, stream_start
from headrace_wire import redis_keys
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.functions import Reply
from headrace_wire.messages import ChatTurn, Ended, SamplingParams, StreamState
from headrace_wire.snapshot import DetachedPolicy
from tests.support.processes import PATIENCE_SECONDS
from tests.support.snapshots import KEY_A, publish_snapshot, simulated, snapshot

from .conftest import WORKER

WINDOW = 64
CONTINUE_TOKENS = 100


@pytest.fixture
async def dying(redis_url: str, gateway: Gateway) -> AsyncIterator[Gateway]:
    """A second gateway, whose end nobody will notice before its lease has run out."""
    other = Gateway(redis_url=redis_url, secret_key="test", lease_seconds=60.0)
    await other.start()
    yield other
    await other.functions.aclose()
    await other.redis.aclose()


async def configure(gateway: Gateway, policy: DetachedPolicy) -> None:
    config = snapshot(2, simulated("sim"))
    terms = {"detached_policy": policy, "detached_tokens": CONTINUE_TOKENS, "detached_grace_seconds": 0.0}
    tenants = [msgspec.structs.replace(tenant, **terms) for tenant in config.tenants]
    await publish_snapshot(gateway.redis, msgspec.structs.replace(config, tenants=tenants))
    await gateway.config_reader.refresh()


async def started_at(gateway: Gateway, *, can_return: bool = True) -> str:
    caller = gateway.config.authenticate(KEY_A.reveal())
    started = await stream_start(
        gateway=gateway,
        caller=caller,
        deployment=gateway.config.deployment(caller, "sim"),
        conversation=[ChatTurn("user", "hello")],
        sampling=SamplingParams(max_tokens=2000),
        options=StreamOptions(window=WINDOW, can_return=can_return),
    )
    return started.stream_id


async def die(gateway: Gateway) -> None:
    """As SIGKILL has it: nobody is told, and the lease runs out."""
    tasks = [*gateway._tasks, gateway._delivery_task]
    await cancel_and_wait(*[task for task in tasks if task is not None])
    await gateway.redis.zadd(redis_keys.incarnations_key(), {gateway.incarnation: 1})


def shorten(gateway: Gateway, seconds: float) -> None:
    gateway._adoption._least_grace_seconds = seconds


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that nobody announces."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await holds():  # noqa: ASYNC110  see above
            await asyncio.sleep(0.02)


async def until_adopted(gateway: Gateway, stream_id: str) -> None:
    async def is_adopted() -> bool:
        return gateway.detachment.is_waiting(stream_id)

    await until(is_adopted)


async def until_ended(gateway: Gateway, stream_id: str) -> Ended:
    """Return the end of a stream, without becoming its reader."""

    async def has_ended() -> bool:
        return isinstance(await gateway.token_log.tail(stream_id), Ended)

    await until(has_ended)
    tail = await gateway.token_log.tail(stream_id)
    assert isinstance(tail, Ended)
    return tail


async def credit_above(gateway: Gateway, stream_id: str, before: int) -> int:
    """Return how far the stream may generate once that is further than `before`."""

    async def credit() -> int:
        record = await gateway.queue.record(stream_id)
        assert record is not None
        return record.credit

    async def is_above() -> bool:
        return await credit() > before

    await until(is_above)
    return await credit()


async def until_looked_after(gateway: Gateway, dead: str) -> None:
    async def is_done() -> bool:
        is_known: Reply = await gateway.redis.zscore(redis_keys.incarnations_key(), dead)
        return is_known is None and not await gateway.redis.exists(redis_keys.left_behind_key())

    await until(is_done)


@pytest.mark.parametrize(
    ("policy", "credit"),
    [(DetachedPolicy.FINISH, UNLIMITED), (DetachedPolicy.CONTINUE, CONTINUE_TOKENS)],
)
async def test_a_stream_goes_on_as_its_policy_says(
    gateway: Gateway, dying: Gateway, policy: DetachedPolicy, credit: int
) -> None:
    """Its reader had taken nothing."""
    await configure(gateway, policy)
    shorten(gateway, 0.1)
    stream_id = await started_at(dying)
    await gateway.queue.claim(WORKER, deployment="sim", want=1)
    await die(dying)
    assert await credit_above(gateway, stream_id, WINDOW) == credit
    await until_looked_after(gateway, dying.incarnation)


@pytest.mark.parametrize(("policy", "can_return"), [(DetachedPolicy.ABORT, True), (DetachedPolicy.FINISH, False)])
async def test_a_stream_ends_where_its_policy_says_so_or_nobody_can_come_back(
    gateway: Gateway, dying: Gateway, policy: DetachedPolicy, can_return: bool
) -> None:
    await configure(gateway, policy)
    shorten(gateway, 0.1)
    stream_id = await started_at(dying, can_return=can_return)
    await die(dying)
    assert (await until_ended(gateway, stream_id)).state is StreamState.CANCELLED


@pytest.mark.parametrize("comes", ["before the gateway is missed", "in time"])
async def test_a_reader_that_comes_back_keeps_its_stream(gateway: Gateway, dying: Gateway, comes: str) -> None:
    await configure(gateway, DetachedPolicy.ABORT)
    shorten(gateway, 60.0)
    stream_id = await started_at(dying)
    await gateway.queue.claim(WORKER, deployment="sim", want=1)
    caller = gateway.config.authenticate(KEY_A.reveal())
    if comes == "in time":
        await die(dying)
        await until_adopted(gateway, stream_id)
    subscription, _ = await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=0)
    if comes != "in time":
        await die(dying)
    await until_looked_after(gateway, dying.incarnation)
    cancelled: Reply = await gateway.redis.hget(redis_keys.stream_key(stream_id), "cancel")
    assert cancelled is None
    assert await gateway.redis.get(redis_keys.readers_key(stream_id)) == gateway.incarnation.encode()
    subscription.close()


async def test_what_an_adopter_leaves_behind_is_adopted_again(gateway: Gateway, dying: Gateway) -> None:
    """It dies in the grace that it had begun."""
    await configure(gateway, DetachedPolicy.ABORT)
    shorten(gateway, 60.0)
    stream_id = await started_at(dying)
    await die(dying)
    await until_adopted(gateway, stream_id)
    gateway._adoption.give_up()
    shorten(gateway, 0.1)
    await gateway.redis.zadd(redis_keys.left_behind_key(), {dying.incarnation: 1})  # nothing was heard of it for long
    assert (await until_ended(gateway, stream_id)).state is StreamState.CANCELLED


async def test_only_one_gateway_adopts(gateway: Gateway) -> None:
    left_behind = gateway._adoption._left_behind
    await gateway.redis.zadd(redis_keys.left_behind_key(), {"gateway-dead": 0})
    shares = await asyncio.gather(left_behind.adopt([], seconds=60), left_behind.adopt([], seconds=60))
    assert sorted(shares) == [[], ["gateway-dead"]]
    await gateway.redis.zadd(redis_keys.left_behind_key(), {"gateway-dead": 1})
    assert await left_behind.adopt(["gateway-dead"], seconds=60) == [], "who keeps it does not lose it"
    await left_behind.forget("gateway-dead")
    assert await left_behind.adopt(["gateway-dead"], seconds=60) == []
