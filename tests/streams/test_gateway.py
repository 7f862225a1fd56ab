"""What a gateway does for streams that lost their owner, and when it loses its own lease."""

import asyncio
import time

import msgspec
import pytest

from apps.streams.config_view import Caller
from apps.streams.follower import Follower
from apps.streams.gateway import Gateway
from apps.streams.services import stream_attach, stream_cancel, stream_start
from headrace_wire import redis_keys
from headrace_wire.errors import (
    DrainingError,
    InvalidApiKeyError,
    LogRolledBackError,
    ModelNotFoundError,
    ServerOverloadedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headrace_wire.functions import Reply
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import (
    ChatTurn,
    Delta,
    Ended,
    FinishReason,
    SamplingParams,
    Started,
    StreamState,
    Timings,
    Usage,
)
from headrace_wire.request_queue import MAX_ATTEMPTS, CancelOutcome
from headrace_wire.token_log import Append
from tests.support.snapshots import KEY_A, KEY_B, TENANT_A, publish_snapshot, simulated, snapshot

from .conftest import WORKER, admit, wait_for_state

TURNS = [ChatTurn("user", "hello")]


def caller(gateway: Gateway) -> Caller:
    return gateway.config.authenticate(KEY_A.reveal())


async def end_of(gateway: Gateway, stream_id: str) -> Ended:
    """Follow a stream to its end."""
    subscription = gateway.delivery.subscribe(stream_id, read_log=True)
    try:
        while True:
            for entry in await asyncio.wait_for(subscription.next(), 30):
                if isinstance(entry, Ended):
                    return entry
    finally:
        subscription.close()


async def test_a_stream_of_a_dead_worker_goes_back_to_the_head_of_its_queue(gateway: Gateway) -> None:
    stream_id, other = new_stream_id(), new_stream_id()
    await admit(gateway, stream_id)
    (first,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    await admit(gateway, other)
    await gateway.redis.zadd(redis_keys.incarnations_key(), {WORKER: 1})
    await wait_for_state(gateway, stream_id, StreamState.QUEUED)
    spare = "worker-spare"
    await gateway.queue.enlist(spare, lease_seconds=60, channels=[redis_keys.control_key(spare)])
    again, behind = await gateway.queue.claim(spare, deployment="sim", want=5)
    assert (again.stream_id, again.attempt) == (stream_id, 2)
    assert again.epoch > first.epoch
    assert behind.stream_id == other


async def test_a_stream_that_loses_every_worker_fails_explicitly_with_its_usage(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    await gateway.redis.hset(redis_keys.stream_key(stream_id), "attempts", str(MAX_ATTEMPTS - 1))
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    await gateway.token_log.append([Append(Delta(stream_id, claimed.epoch, 3, 3, "abc"), token_ids=[1, 2, 3])])
    await gateway.redis.zadd(redis_keys.incarnations_key(), {WORKER: 1})
    ended = await end_of(gateway, stream_id)
    assert ended.state is StreamState.FAILED
    assert ended.error is not None
    assert ended.error.code == "engine_error"
    assert ended.usage.prompt_tokens == 1
    assert ended.usage.completion_tokens == 3
    assert ended.seq == 4
    await wait_for_state(gateway, stream_id, StreamState.FAILED)


async def test_an_end_that_its_worker_settled_and_did_not_publish_reaches_the_reader(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    subscription = gateway.delivery.subscribe(stream_id)
    end = Ended(stream_id, claimed.epoch, 1, StreamState.FINISHED, FinishReason.LENGTH, None, Usage(), Timings())
    await gateway.token_log.append([Append(end, log_ttl_seconds=60)])
    await gateway.queue.settle(stream_id, epoch=claimed.epoch, incarnation=WORKER, state=end.state, log_ttl_seconds=60)
    await gateway.redis.zadd(redis_keys.incarnations_key(), {WORKER: 1})
    assert await asyncio.wait_for(subscription.next(), 30) == [end]
    await gateway.endings.tell_again(stream_id)
    assert await subscription.next(patience_seconds=0.2) == [], "nobody is told twice"
    subscription.close()


async def test_cancel_in_the_queue_ends_the_stream(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    outcome = await stream_cancel(gateway=gateway, tenant_id=TENANT_A, stream_id=stream_id, reason="client")
    assert outcome is CancelOutcome.QUEUED
    ended = await end_of(gateway, stream_id)
    assert (ended.state, ended.finish_reason) == (StreamState.CANCELLED, FinishReason.ABORT)
    assert ended.usage == Usage(), "nobody has read its prompt"
    again = await stream_cancel(gateway=gateway, tenant_id=TENANT_A, stream_id=stream_id, reason="client")
    assert again is CancelOutcome.ENDED


@pytest.mark.parametrize("left", ["suspended", "queued"])
async def test_cancel_of_a_stream_that_nobody_has_any_more_tells_its_usage(gateway: Gateway, left: str) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id, window=3)
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    await gateway.token_log.append([Append(Delta(stream_id, claimed.epoch, 3, 3, "abc"), token_ids=[1, 2, 3])])
    if left == "suspended":
        await gateway.queue.suspend(
            stream_id, epoch=claimed.epoch, incarnation=WORKER, deployment="sim", credit=3, reason="slow_consumer"
        )
    else:
        await gateway.queue.requeue(
            stream_id, epoch=claimed.epoch, incarnation=WORKER, deployment="sim", max_attempts=MAX_ATTEMPTS
        )
    outcome = await stream_cancel(gateway=gateway, tenant_id=TENANT_A, stream_id=stream_id, reason="client")
    assert outcome is CancelOutcome.QUEUED
    ended = await end_of(gateway, stream_id)
    assert ended.state is StreamState.CANCELLED
    assert ended.usage == Usage(1, 3)


async def test_a_stream_that_nobody_takes_ends_at_its_deadline(gateway: Gateway) -> None:
    deployment = gateway.config.deployment(caller(gateway), "nobody")
    started = await stream_start(
        gateway=gateway,
        caller=caller(gateway),
        deployment=deployment,
        conversation=TURNS,
        sampling=SamplingParams(max_tokens=4),
    )
    follower = Follower(gateway, started.subscription, tenant_id=TENANT_A, queue_deadline_seconds=0.05)
    entries = await follower.next()
    while not entries:
        entries = await asyncio.wait_for(follower.next(), 30)
    ended = entries[-1]
    assert isinstance(ended, Ended)
    assert ended.error is not None
    assert ended.error.code == "server_overloaded"
    started.subscription.close()


async def test_a_stream_that_nobody_goes_on_with_fails_at_its_deadline_and_stays_readable(gateway: Gateway) -> None:
    stream_id, claimed_again, other = new_stream_id(), new_stream_id(), new_stream_id()
    began = time.time()
    for admitted in (stream_id, claimed_again):
        await admit(gateway, admitted)
    for claimed in await gateway.queue.claim(WORKER, deployment="sim", want=2):
        await gateway.token_log.append([Append(Delta(claimed.stream_id, claimed.epoch, 1, 1, "wa"), [7])])
        await gateway.queue.requeue(
            claimed.stream_id, epoch=claimed.epoch, incarnation=WORKER, deployment="sim", max_attempts=MAX_ATTEMPTS
        )
    (in_time,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    assert in_time.stream_id == claimed_again
    until: Reply = await gateway.redis.zscore(redis_keys.deadlines_key(), stream_id)
    assert began + 59.9 <= until / 1000 <= time.time() + 60, "as long again as it might have waited at first"
    for late in (stream_id, claimed_again):  # that is over
        await gateway.redis.hset(redis_keys.stream_key(late), "wait_until_ms", "1")
        await gateway.redis.zadd(redis_keys.deadlines_key(), {late: 1}, xx=True)
    ended = await end_of(gateway, stream_id)
    assert (ended.state, ended.seq, ended.usage) == (StreamState.FAILED, 2, Usage(1, 1))
    assert ended.error is not None
    assert ended.error.code == "server_overloaded"
    subscription, _ = await stream_attach(gateway=gateway, caller=caller(gateway), stream_id=stream_id, after=0)
    assert [e.text for e in await subscription.next() if isinstance(e, Delta)] == ["wa"]
    subscription.close()
    record = await gateway.queue.record(in_time.stream_id)
    assert record is not None
    assert (record.state, record.epoch) == (StreamState.RUNNING, in_time.epoch)
    # Nothing is left of it in the queue.
    await admit(gateway, other)
    assert [claimed.stream_id for claimed in await gateway.queue.claim(WORKER, deployment="sim", want=9)] == [other]


async def test_a_full_queue_refuses_and_leaves_no_log(gateway: Gateway) -> None:
    await publish_snapshot(gateway.redis, snapshot(2, simulated("tight", queue_limit=1)))
    await gateway.config_reader.refresh()
    deployment = gateway.config.deployment(caller(gateway), "tight")

    async def start() -> None:
        started = await stream_start(
            gateway=gateway,
            caller=caller(gateway),
            deployment=deployment,
            conversation=TURNS,
            sampling=SamplingParams(max_tokens=4),
        )
        started.subscription.close()

    await start()
    with pytest.raises(ServerOverloadedError):
        await start()
    assert len(await gateway.redis.keys("{hr0}:log:*")) == 1
    assert gateway.delivery.stream_ids() == []


async def test_another_tenant_finds_nothing(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    other = gateway.config.authenticate(KEY_B.reveal())
    with pytest.raises(StreamNotFoundError) as foreign:
        await stream_attach(gateway=gateway, caller=other, stream_id=stream_id, after=0)
    with pytest.raises(StreamNotFoundError) as unknown:
        await stream_attach(gateway=gateway, caller=other, stream_id=new_stream_id(), after=0)
    assert foreign.value.code == unknown.value.code
    with pytest.raises(StreamNotFoundError):
        await stream_cancel(gateway=gateway, tenant_id=other.tenant.id, stream_id=stream_id, reason="client")
    with pytest.raises(ModelNotFoundError):
        gateway.config.deployment(caller(gateway), "only-b")
    assert gateway.config.deployment(other, "only-b").name == "only-b"


async def test_an_expired_log_is_told_from_an_unknown_stream(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    await gateway.redis.delete(redis_keys.log_key(stream_id))
    with pytest.raises(StreamGoneError):
        await stream_attach(gateway=gateway, caller=caller(gateway), stream_id=stream_id, after=0)


async def test_a_reader_whose_stream_redis_has_lost_is_told_so(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    subscription = gateway.delivery.subscribe(stream_id)
    await gateway.redis.delete(redis_keys.log_key(stream_id), redis_keys.stream_key(stream_id))
    subscription.distrust()
    with pytest.raises(LogRolledBackError):
        await asyncio.wait_for(Follower(gateway, subscription, tenant_id=TENANT_A).next(), 30)
    subscription.close()


@pytest.mark.parametrize("owner", ["nobody", "a worker"])
async def test_a_cursor_beyond_the_tail_waits_only_for_an_owner(gateway: Gateway, owner: str) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    entries = [Delta(stream_id, claimed.epoch, seq, 1, str(seq)) for seq in range(1, 6)]
    # An owner that was not dead yet wrote before the second fence; what counts is how far the log goes.
    fence = Started(stream_id, claimed.epoch + 1, 1, "w", 2)
    await gateway.token_log.append([*(Append(entry) for entry in entries[:3]), Append(fence)])
    if owner == "nobody":
        await gateway.queue.requeue(
            stream_id, epoch=claimed.epoch, incarnation=WORKER, deployment="sim", max_attempts=MAX_ATTEMPTS
        )
        with pytest.raises(LogRolledBackError):
            await stream_attach(gateway=gateway, caller=caller(gateway), stream_id=stream_id, after=4)
    subscription, _ = await stream_attach(
        gateway=gateway, caller=caller(gateway), stream_id=stream_id, after=3 if owner == "nobody" else 4
    )
    reading = asyncio.create_task(subscription.next())
    again = [Delta(stream_id, fence.epoch, entry.seq, 1, entry.text) for entry in entries]
    await gateway.token_log.append([Append(entry, [1], entry.seq - 1) for entry in again[1:]])
    given = await asyncio.wait_for(reading, 30)
    while not isinstance(given[-1], Delta):
        given = await asyncio.wait_for(subscription.next(), 30)
    assert next(entry.seq for entry in given if isinstance(entry, Delta)) == (4 if owner == "nobody" else 5)
    subscription.close()


async def test_a_stream_that_ends_before_its_readers_cursor_is_no_clean_end(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    await gateway.token_log.append([Append(Delta(stream_id, claimed.epoch, 2, 2, "ab"), [1, 2])])
    subscription, _ = await stream_attach(gateway=gateway, caller=caller(gateway), stream_id=stream_id, after=9)
    reading = asyncio.create_task(subscription.next())
    end = Ended(stream_id, claimed.epoch, 3, StreamState.FINISHED, FinishReason.STOP, None, Usage(1, 2), Timings())
    await gateway.token_log.append([Append(end, log_ttl_seconds=60)])
    await gateway.token_log.publish([end])
    with pytest.raises(LogRolledBackError):
        await asyncio.wait_for(reading, 30)
    subscription.close()


@pytest.mark.parametrize("is_told", [True, False], ids=["told of", "though operators cannot be told"])
async def test_a_lost_lease_gives_a_new_name_and_loses_no_reader(gateway: Gateway, is_told: bool) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    subscription = gateway.delivery.subscribe(stream_id)
    old = gateway.incarnation
    await gateway.redis.zadd(redis_keys.incarnations_key(), {old: 1})
    await gateway.redis.delete(redis_keys.delivery_key(old))
    if not is_told:
        await gateway.redis.set(redis_keys.gateways_key(), "no hash")
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    reading = asyncio.create_task(subscription.next())
    await gateway._renew()
    assert gateway.incarnation != old
    await gateway.token_log.append([Append(Delta(stream_id, claimed.epoch, 1, 1, "x"))])
    assert [e.seq for e in await asyncio.wait_for(reading, 30)] == [1]
    subscription.close()


async def test_a_new_configuration_acts_within_a_second(gateway: Gateway) -> None:
    await publish_snapshot(gateway.redis, snapshot(7, simulated("new")))
    async with asyncio.timeout(30):
        while gateway.config.version != 7:
            await gateway.redis.ping()
    assert [d.name for d in gateway.config.deployments(caller(gateway))] == ["new"]


async def test_a_draining_gateway_takes_no_stream(gateway: Gateway) -> None:
    gateway.draining = True
    deployment = gateway.config.deployment(caller(gateway), "sim")
    with pytest.raises(DrainingError):
        await stream_start(
            gateway=gateway,
            caller=caller(gateway),
            deployment=deployment,
            conversation=TURNS,
            sampling=SamplingParams(max_tokens=4),
        )
    assert not gateway.is_ready


async def test_a_full_gateway_refuses_with_a_retry_time_and_recovers(gateway: Gateway) -> None:
    gateway.limit.hard = 2
    readers = [gateway.delivery.subscribe(f"strm-{n}") for n in range(2)]
    with pytest.raises(ServerOverloadedError) as refused:
        gateway.delivery.subscribe("strm-3")
    assert refused.value.retry_after_seconds is not None
    assert 1 <= refused.value.retry_after_seconds <= 120
    readers[0].close()
    readers[0].close()
    gateway.delivery.subscribe("strm-4").close()
    readers[1].close()
    assert gateway.limit.open == 0


async def test_the_use_of_a_key_is_noted_for_the_database(gateway: Gateway) -> None:
    assert gateway.authenticate(KEY_A.reveal()).tenant.id == TENANT_A
    await gateway._report_keys()
    noted = await gateway.redis.hgetall(redis_keys.keys_used_key())
    assert set(noted) == {KEY_A.public_id.encode()}


async def test_a_short_lease_is_kept(redis_url: str, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.streams.gateway.TICK_SECONDS", 600.0)  # of longer ones
    short = Gateway(redis_url=redis_url, secret_key="test", lease_seconds=8.0)
    await short.start()
    try:
        first, key = short.incarnation, redis_keys.incarnations_key()
        enlisted: Reply = await gateway.redis.zscore(key, first)
        expiry: Reply = enlisted
        while expiry == enlisted:
            await asyncio.sleep(0.05)
            expiry = await gateway.redis.zscore(key, first)
            assert short.incarnation == first
    finally:
        await short.stop()


@pytest.mark.parametrize("ended", ["key", "tenant"])
async def test_access_that_ends_ends_the_streams_that_it_started(gateway: Gateway, ended: str) -> None:
    mine, others = caller(gateway), gateway.config.authenticate(KEY_B.reveal())
    deployment = gateway.config.deployment(mine, "sim")
    started = await stream_start(
        gateway=gateway, caller=mine, deployment=deployment, conversation=TURNS, sampling=SamplingParams(max_tokens=8)
    )
    foreign = await stream_start(
        gateway=gateway, caller=others, deployment=deployment, conversation=TURNS, sampling=SamplingParams(max_tokens=8)
    )
    following = asyncio.create_task(started.subscription.next())
    config = snapshot(2, simulated("sim"))
    if ended == "key":
        left = [key for key in config.api_keys if key.public_id != KEY_A.public_id]
        changed = msgspec.structs.replace(config, api_keys=left)
    else:
        tenants = [msgspec.structs.replace(t, active=t.active and t.id != TENANT_A) for t in config.tenants]
        changed = msgspec.structs.replace(config, tenants=tenants)
    await publish_snapshot(gateway.redis, changed)

    with pytest.raises(InvalidApiKeyError):
        await asyncio.wait_for(following, 30)
    assert (await end_of(gateway, started.stream_id)).state is StreamState.CANCELLED
    record = await gateway.queue.record(foreign.stream_id)
    assert record is not None
    assert record.state is StreamState.QUEUED, "nobody else is disturbed"
    foreign.subscription.close()
    started.subscription.close()
