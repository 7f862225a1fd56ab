"""Prefix affinity, the gateway's part: when prompts are named, and when a stream is offered to all."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from apps.streams.gateway import Gateway
from headrace_wire import codec, redis_keys
from headrace_wire.bell import Bell
from headrace_wire.codec import pack_token_ids
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.guard_policy import GuardTerms
from headrace_wire.messages import ChatTurn, GenerateRequest, SamplingParams
from headrace_wire.prefix_index import PrefixIndex
from tests.support.snapshots import TENANT_A, TENANT_B

HOLDER, OTHER = "worker-holder", "worker-other"
IDS = list(range(500))


def request(stream_id: str = "strm-1", *, salt: str = "salt", ids: Sequence[int] = IDS) -> GenerateRequest:
    tenant = TENANT_A if salt == "salt" else TENANT_B
    return GenerateRequest(
        stream_id, tenant, "sim", SamplingParams(max_tokens=8), salt, pack_token_ids(ids), guard=GuardTerms()
    )


def said(*turns: ChatTurn, salt: str = "salt") -> GenerateRequest:
    """Return a request as it is where the gateway cannot make its ids."""
    return replace(request(salt=salt, ids=()), conversation=turns)


async def register(gateway: Gateway, name: str, *, cache_tokens: int = 10_000) -> None:
    await gateway.queue.enlist(name, lease_seconds=60, channels=[redis_keys.control_key(name)])
    await gateway.queue.renew(name, lease_seconds=60, owned=[], channels=[], serving=("sim", 8))
    info = WorkerInfo(name, "sim", "simulated", WorkerState.READY, "host", 1, 0.0, cache_tokens=cache_tokens)
    await gateway.redis.hset(redis_keys.workers_key(), name, codec.encode(info))
    await gateway.fleet.refresh()


async def admit(gateway: Gateway, one: GenerateRequest) -> bool:
    """Admit a request as `stream_start` does; returns whether it may be left to a worker."""
    affinity = gateway.affinity
    call = gateway.queue.admit_call(
        one,
        queue_limit=10,
        queue_timeout_seconds=60,
        prefix=affinity.prefix(one),
        prefer_seconds=affinity.seconds,
    )
    open_call = gateway.token_log.open_call(one.stream_id, readers=[gateway.incarnation])
    _, reply = await gateway.functions.call_many([open_call, call])
    return gateway.queue.parse_admission(reply).may_be_left


@pytest.fixture
async def holder(gateway: Gateway) -> str:
    """One of two workers holds the prompt `IDS` of tenant A."""
    for name in (HOLDER, OTHER):
        await register(gateway, name)
    hashes = gateway.affinity.prefix(request())
    index = PrefixIndex(gateway.functions)
    assert await index.report(HOLDER, deployment="sim", lease_seconds=60, added=hashes) == len(hashes) == 15
    return HOLDER


@pytest.fixture
async def bell(redis_url: str) -> AsyncIterator[Bell]:
    bell = Bell(redis_url)
    yield bell
    bell.close()


async def test_prompts_are_named_only_where_workers_can_be_chosen(gateway: Gateway) -> None:
    assert gateway.affinity.prefix(request()) == []
    await register(gateway, HOLDER)
    await register(gateway, OTHER, cache_tokens=0)
    assert gateway.affinity.prefix(request()) == [], "only one has a prefix cache"
    await register(gateway, "worker-third")
    assert len(gateway.affinity.prefix(request())) == 15
    gateway.affinity.seconds = 0.0
    assert gateway.affinity.prefix(request()) == []


async def test_where_the_worker_makes_the_ids_the_text_is_named(gateway: Gateway) -> None:
    for name in (HOLDER, OTHER):
        await register(gateway, name)
    system, question = ChatTurn("system", "You know the tides. " * 30), ChatTurn("user", "When is high tide?")
    named = gateway.affinity.prefix(said(system, question))
    assert len(named) == 4
    assert gateway.affinity.prefix(said(system, ChatTurn("user", "Why?"))) == named
    assert not set(gateway.affinity.prefix(said(system, question, salt="salt of b"))) & set(named)
    index = PrefixIndex(gateway.functions)
    await index.report(HOLDER, deployment="sim", lease_seconds=60, added=named)
    assert await admit(gateway, said(system, question))
    assert await gateway.redis.llen(redis_keys.own_bell_key(HOLDER)) == 1
    assert await gateway.redis.llen(redis_keys.bell_key("sim")) == 0


async def test_a_stream_that_still_waits_is_offered_to_all(gateway: Gateway, holder: str, bell: Bell) -> None:
    one = request()
    subscription = gateway.delivery.subscribe(one.stream_id)
    may_be_left = await admit(gateway, one)
    assert may_be_left
    assert await gateway.redis.llen(redis_keys.own_bell_key(holder)) == 1
    assert await gateway.redis.llen(redis_keys.bell_key("sim")) == 0, "nobody else was woken"
    gateway.watch_place(subscription, deployment="sim", may_be_left=may_be_left)
    assert await bell.wait("sim", OTHER, timeout_seconds=30)
    (claimed,) = await gateway.queue.claim(OTHER, deployment="sim", want=1)
    assert claimed.stream_id == one.stream_id


async def test_what_was_taken_is_not_offered(gateway: Gateway, holder: str, bell: Bell) -> None:
    taken, waits = request("strm-taken"), request("strm-waits")
    subscriptions = {one.stream_id: gateway.delivery.subscribe(one.stream_id) for one in (taken, waits)}
    await admit(gateway, taken)
    await admit(gateway, waits)
    for subscription in subscriptions.values():
        gateway.watch_place(subscription, deployment="sim", may_be_left=True)
    waiting = subscriptions["strm-taken"].waiting
    assert waiting is not None
    gateway.waiting_room.leave(waiting)
    assert await bell.wait("sim", OTHER, timeout_seconds=30)
    await gateway.queue.claim(holder, deployment="sim", want=8)
    await asyncio.sleep(0)
    assert await gateway.redis.llen(redis_keys.bell_key("sim")) == 0


async def test_another_tenant_is_left_to_nobody(gateway: Gateway, holder: str) -> None:
    """The same prompt under another tenant's salt: no worker holds any of it."""
    await admit(gateway, request("strm-b", salt="salt of b"))
    assert await gateway.redis.llen(redis_keys.own_bell_key(holder)) == 0
    (claimed,) = await gateway.queue.claim(holder, deployment="sim", want=1)
    assert claimed.held_blocks == 0
