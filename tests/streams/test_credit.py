"""Credit and detachment: what readers did, as the owner of a stream hears of it."""

import asyncio
from typing import Any

import msgspec
import pytest

from apps.streams.credit_book import UNLIMITED, CreditBook
from apps.streams.gateway import Gateway
from apps.streams.services import stream_attach, stream_leave
from headrace_wire import codec, redis_keys
from headrace_wire.errors import StreamGoneError
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import Cancel, Credit, Delta
from headrace_wire.snapshot import DetachedPolicy, TenantConfig
from headrace_wire.token_log import Append
from tests.support.processes import PATIENCE_SECONDS
from tests.support.snapshots import KEY_A, TENANT_A

from .conftest import WORKER, admit


async def told(gateway: Gateway, *, count: int) -> list[Any]:
    """Return the first `count` control messages to the worker, waiting for them."""
    messages: list[Any] = []
    last = "1-0"  # enlisting created the channel with one empty entry
    while len(messages) < count:
        block = int(PATIENCE_SECONDS * 1000)
        rows: Any = await gateway.redis.xread({redis_keys.control_key(WORKER): last}, block=block)
        assert rows, f"only {messages} in time"
        groups = next(iter(rows.values()))[0] if isinstance(rows, dict) else rows[0][1]
        for row_id, fields in groups:
            last = row_id
            messages.append(codec.decode_control(fields[b"d"]))
    return messages


async def owned_stream(gateway: Gateway, *, window: int = 0) -> str:
    stream_id = new_stream_id()
    await admit(gateway, stream_id, window=window)
    await gateway.queue.claim(WORKER, deployment="sim", want=1)
    return stream_id


def tenant(**changes: Any) -> TenantConfig:
    return msgspec.structs.replace(TenantConfig(id=TENANT_A, slug="a", detached_grace_seconds=0.05), **changes)


async def test_acknowledgements_become_credit_in_steps_of_a_quarter(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    gateway.credit.open(stream_id, window=100, granted=100)
    gateway.credit.acknowledge(stream_id, 24)  # less than a quarter: nothing is sent for it
    gateway.credit.acknowledge(stream_id, 25)
    gateway.credit.acknowledge(stream_id, 10)  # late, and lower
    assert await told(gateway, count=1) == [Credit(stream_id, 125)]
    gateway.credit.acknowledge(stream_id, 60)
    assert (await told(gateway, count=2))[1] == Credit(stream_id, 160)
    assert gateway.credit.granted(stream_id) == 160


async def test_a_reader_that_took_all_always_gets_the_engine_going(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    for window in (1, 2, 3, 8):
        book = CreditBook(gateway.queue)
        book.open(stream_id, window=window, granted=window)
        book.acknowledge(stream_id, window)
        assert book.granted(stream_id) == 2 * window


async def test_many_acknowledgements_share_a_message(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    gateway.credit.open(stream_id, window=8, granted=8)
    for position in range(1, 400):
        gateway.credit.acknowledge(stream_id, position)
    assert (await told(gateway, count=1))[-1] == Credit(stream_id, 406), "in steps of two"
    assert await gateway.redis.xlen(redis_keys.control_key(WORKER)) == 2, "one, beside the one that made the channel"


async def test_who_resumes_where_the_credit_ends_gets_more(gateway: Gateway) -> None:
    """Its last acknowledgement went down with another gateway, and it has nothing more to acknowledge."""
    stream_id = await owned_stream(gateway, window=16)
    await gateway.token_log.append([Append(Delta(stream_id, 10**15, 16, 16, "x"))])
    caller = gateway.config.authenticate(KEY_A.reveal())
    for after in (16, 10**9):  # it cannot have more than there is
        subscription, _ = await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=after)
        assert await told(gateway, count=1) == [Credit(stream_id, 16 + 16)], "by the window that it was started with"
        subscription.close()


async def test_credit_that_a_restarted_redis_forgot_is_granted_again(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    gateway.credit.open(stream_id, window=100, granted=100)
    gateway.credit.acknowledge(stream_id, 100)
    await told(gateway, count=1)
    await gateway.redis.hset(redis_keys.stream_key(stream_id), "credit", "100")
    await gateway.redis.xtrim(redis_keys.control_key(WORKER), maxlen=1, approximate=False)
    gateway.credit.grant_again()
    assert Credit(stream_id, 200) in await told(gateway, count=2)


async def test_credit_survives_a_redis_that_refuses(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    gateway.credit.open(stream_id, window=8, granted=8)
    # A record of the wrong type makes the function fail, as an unreachable server would.
    key = redis_keys.stream_key("strm-broken")
    await gateway.redis.set(key, "x")
    gateway.credit.open("strm-broken", window=8, granted=8)
    gateway.credit.acknowledge("strm-broken", 8)
    assert not await gateway.credit.flush()
    gateway.credit.acknowledge(stream_id, 8)
    await gateway.redis.delete(key)
    assert await told(gateway, count=1) == [Credit(stream_id, 16)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(DetachedPolicy.FINISH, UNLIMITED), (DetachedPolicy.CONTINUE, 3 + 50)],
)
async def test_an_unread_stream_goes_on_as_its_policy_says(
    gateway: Gateway, policy: DetachedPolicy, expected: int
) -> None:
    stream_id = await owned_stream(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    subscription.position = 3
    stream_leave(gateway=gateway, tenant=tenant(detached_policy=policy, detached_tokens=50), subscription=subscription)
    assert await told(gateway, count=1) == [Credit(stream_id, expected)]
    assert not await gateway.redis.exists(redis_keys.readers_key(stream_id))


async def test_an_unread_stream_is_aborted_where_the_policy_says_so(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    stream_leave(gateway=gateway, tenant=tenant(detached_policy=DetachedPolicy.ABORT), subscription=subscription)
    assert await told(gateway, count=1) == [Cancel(stream_id, "client_disconnected")]


async def test_a_client_that_cannot_return_is_aborted_at_once(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    patient = tenant(detached_policy=DetachedPolicy.FINISH, detached_grace_seconds=3600)
    stream_leave(gateway=gateway, tenant=patient, subscription=subscription, can_return=False)
    assert await told(gateway, count=1) == [Cancel(stream_id, "client_disconnected")]


async def test_who_comes_back_within_the_grace_finds_the_stream_as_it_was(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    patient = tenant(detached_policy=DetachedPolicy.ABORT, detached_grace_seconds=3600)
    stream_leave(gateway=gateway, tenant=patient, subscription=subscription)
    caller = gateway.config.authenticate(KEY_A.reveal())
    again, deployment = await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=0)
    assert deployment == "sim"
    assert gateway.detachment._waiting == {}
    again.close()


async def test_who_comes_back_in_vain_leaves_again(gateway: Gateway) -> None:
    """It had stopped the policy from acting, and cannot follow: the policy is not forgotten."""
    stream_id = await owned_stream(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    stream_leave(gateway=gateway, tenant=tenant(detached_policy=DetachedPolicy.ABORT), subscription=subscription)
    await gateway.redis.delete(redis_keys.log_key(stream_id))
    caller = gateway.config.authenticate(KEY_A.reveal())
    with pytest.raises(StreamGoneError):
        await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=0)
    assert await told(gateway, count=1) == [Cancel(stream_id, "client_disconnected")]


@pytest.mark.parametrize("policy", list(DetachedPolicy))
@pytest.mark.parametrize("is_read_elsewhere", [False, True])
async def test_no_account_is_kept_of_an_unread_stream(
    gateway: Gateway, policy: DetachedPolicy, is_read_elsewhere: bool
) -> None:
    stream_id = await owned_stream(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    gateway.credit.open(stream_id, window=8, granted=8)
    if is_read_elsewhere:
        await gateway.token_log.attach(stream_id, "gateway-other")
    stream_leave(gateway=gateway, tenant=tenant(detached_policy=policy), subscription=subscription)
    await asyncio.gather(*[task for _, task in gateway.detachment._waiting.values()])
    assert not gateway.credit._accounts


async def test_a_second_viewer_keeps_the_stream_alive(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    first, second = gateway.delivery.subscribe(stream_id), gateway.delivery.subscribe(stream_id)
    impatient = tenant(detached_policy=DetachedPolicy.ABORT, detached_grace_seconds=0)
    stream_leave(gateway=gateway, tenant=impatient, subscription=first)
    assert gateway.detachment._waiting == {}
    await gateway.token_log.append([Append(Delta(stream_id, 10**15, 1, 1, "x"))])
    assert [e.seq for e in await asyncio.wait_for(second.next(), 30)] == [1]
    # A viewer on another gateway counts too.
    await gateway.token_log.attach(stream_id, "gateway-other")
    stream_leave(gateway=gateway, tenant=impatient, subscription=second)
    await asyncio.gather(*[task for _, task in gateway.detachment._waiting.values()])
    rows = await gateway.redis.xlen(redis_keys.control_key(WORKER))
    assert rows == 1, "nothing but the entry that created the channel"


async def test_a_gateway_that_ends_lets_policies_act_first(gateway: Gateway) -> None:
    stream_id = await owned_stream(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    patient = tenant(detached_policy=DetachedPolicy.ABORT, detached_grace_seconds=3600)
    stream_leave(gateway=gateway, tenant=patient, subscription=subscription)
    await gateway.detachment.finish()
    assert await told(gateway, count=1) == [Cancel(stream_id, "client_disconnected")]
