"""What those who wait are told: places that fall, and rise only with a reason."""

import asyncio
from typing import Any

import msgspec
import pytest

from apps.streams import metrics
from apps.streams.config_view import Caller
from apps.streams.follower import Follower
from apps.streams.gateway import Gateway
from apps.streams.services import StartedStream, StreamOptions, stream_expire_in_queue, stream_start
from apps.streams.services.ending import RETRY_AFTER_SECONDS
from apps.streams.waiting_room import MIN_SAMPLES, NEWS_SECONDS, RiseReason, Waiting
from headrace_wire import redis_keys
from headrace_wire.errors import InvalidRequestError, ServerOverloadedError
from headrace_wire.messages import ChatTurn, Ended, FinishReason, SamplingParams, StreamState
from headrace_wire.request_queue import Place
from headrace_wire.snapshot import QuotaConfig, QuotaScope
from tests.support.snapshots import KEY_A, KEY_B, TENANT_A, publish_snapshot, simulated, snapshot

from .conftest import WORKER, wait_for_state


def place(
    position: int, *, own: bool = False, served: int = 0, higher: int = 0, samples: int = 0, places: int = 4
) -> Place:
    return Place(position, own, served, higher, 2.0 * position, 0.5, 1.5, samples, places)


def told(waiting: Waiting) -> tuple[int, str] | None:
    news = waiting.take()
    return (news.position, news.reason) if news else None


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_no_time_is_told_where_none_can_be_expected(share: float) -> None:
    """Endless times shares nothing of it is no number at all."""
    waiting = Waiting("strm-x", lambda: None)
    waiting.look(Place(1, False, 0, 0, float("inf"), 0.0, share, MIN_SAMPLES, 0))
    news = waiting.take()
    assert news is not None
    assert (news.position, news.eta_seconds) == (1, None)


def test_only_changes_are_told_and_a_rise_has_its_reason() -> None:
    woken: list[int] = []
    waiting = Waiting("strm-x", lambda: woken.append(1))
    waiting.look(place(5))
    assert told(waiting) == (5, "")
    waiting.look(place(5))
    assert told(waiting) is None
    waiting.look(place(3))
    waiting.look(place(2))
    assert told(waiting) == (2, ""), "only the newest"
    waiting.look(place(4))
    assert told(waiting) == (4, RiseReason.FAIR_SHARE)
    waiting.look(place(5, higher=1))
    assert told(waiting) == (5, RiseReason.PRIORITY)
    waiting.look(place(7, higher=1, served=2))
    assert told(waiting) == (7, RiseReason.CAPACITY_LOST)
    waiting.look(place(8, own=True))
    assert told(waiting) == (8, RiseReason.OWN_LIMIT)
    assert len(woken) == 7


@pytest.mark.parametrize("places", [0, -1])
def test_who_finds_no_worker_is_told_so_and_then_that_one_came(places: int) -> None:
    waiting = Waiting("strm-x", lambda: None)
    first = waiting.begin(place(1, places=places))
    assert (first.position, first.eta_seconds, first.reason) == (1, None, RiseReason.NO_WORKER)
    waiting.look(place(1, places=4))
    assert told(waiting) == (1, "")
    assert waiting.begin(place(2, places=4)).reason == ""


def test_a_time_is_told_as_a_range_once_it_was_measured() -> None:
    waiting = Waiting("strm-x", lambda: None)
    waiting.look(place(4, samples=MIN_SAMPLES - 1))
    news = waiting.take()
    assert news is not None
    assert news.eta_seconds is None
    waiting.look(place(3, samples=MIN_SAMPLES))
    news = waiting.take()
    assert news is not None
    assert news.eta_seconds is not None
    earliest, latest = news.eta_seconds
    assert (earliest, latest) == pytest.approx((3.0, 9.0), abs=2 * NEWS_SECONDS)
    before = metrics.QUEUE_ETAS.labels("outside")._value.get()
    waiting.is_taken()
    waiting.is_taken()
    assert metrics.QUEUE_ETAS.labels("outside")._value.get() == before + 1, "it came sooner, and counts once"


def test_who_waits_for_a_model_that_sleeps_is_told_so_and_how_long_it_takes_to_wake() -> None:
    asleep: list[float | None] = [12.0]
    waiting = Waiting("strm-x", lambda: None, lambda: asleep[0])
    first = waiting.begin(place(2, samples=MIN_SAMPLES))
    assert (first.position, first.reason, first.eta_seconds) == (2, RiseReason.WAKING, (6.0, 24.0))
    waiting.look(place(2, samples=MIN_SAMPLES))
    assert waiting.take() is None, "told already"
    waiting.look(place(1, samples=MIN_SAMPLES))
    assert told(waiting) == (1, RiseReason.WAKING)
    asleep[0] = None
    waiting.look(place(1, samples=MIN_SAMPLES, places=8))
    news = waiting.take()
    assert news is not None, "it is awake: times are measured ones again"
    assert (news.reason, news.eta_seconds) != (RiseReason.WAKING, (6.0, 24.0))


def test_who_waits_while_workers_go_is_told_anew_and_why() -> None:
    waiting = Waiting("strm-x", lambda: None)
    waiting.look(place(4, samples=MIN_SAMPLES, places=16))
    waiting.take()
    before = metrics.QUEUE_ETAS.labels("withdrawn")._value.get()
    waiting.look(place(4, samples=MIN_SAMPLES, places=1))
    assert told(waiting) == (4, RiseReason.CAPACITY_LOST), "its place is the same, the time is not"
    waiting.look(place(4, samples=0, places=0))
    news = waiting.take()
    assert news is not None
    assert (news.eta_seconds, news.reason) == (None, RiseReason.CAPACITY_LOST), "nobody is there to serve it"
    waiting.look(place(4, samples=MIN_SAMPLES, places=8))
    assert told(waiting) == (4, "")
    assert metrics.QUEUE_ETAS.labels("withdrawn")._value.get() == before + 2


async def start(gateway: Gateway, caller: Caller, *, priority: int | None = None) -> StartedStream:
    return await stream_start(
        gateway=gateway,
        caller=caller,
        deployment=gateway.config.deployment(caller, "sim"),
        conversation=[ChatTurn("user", "hello")],
        sampling=SamplingParams(max_tokens=8),
        options=StreamOptions(priority=priority),
    )


def follow(gateway: Gateway, started: StartedStream, caller: Caller) -> Follower:
    return Follower(gateway, started.subscription, tenant_id=caller.tenant.id, queue_deadline_seconds=60.0)


async def test_a_follower_hears_how_its_place_falls(gateway: Gateway) -> None:
    caller = gateway.config.authenticate(KEY_A.reveal())
    streams = [await start(gateway, caller) for _ in range(3)]
    assert [one.place.position for one in streams] == [1, 2, 3]
    follower = follow(gateway, streams[2], caller)
    await gateway.waiting_room.look()
    hearing = asyncio.create_task(follower.next())
    await gateway.queue.claim(WORKER, deployment="sim", want=2)
    await gateway.waiting_room.look()
    assert await asyncio.wait_for(hearing, 30) == []
    later = follower.take_news()
    assert later is not None
    assert (later.position, later.reason) == (1, "")
    assert follower.take_news() is None
    for one in streams:
        one.subscription.close()


async def test_parallel_requests_of_one_tenant_do_not_keep_another(gateway: Gateway) -> None:
    config = snapshot(2, simulated("sim"))
    quota = QuotaConfig(id="q", scope=QuotaScope.TENANT, tenant_id=TENANT_A, max_parallel_requests=1)
    await publish_snapshot(gateway.redis, msgspec.structs.replace(config, quotas=[quota]))
    await gateway.config_reader.refresh()
    mine, others = gateway.config.authenticate(KEY_A.reveal()), gateway.config.authenticate(KEY_B.reveal())
    first, second, foreign = await start(gateway, mine), await start(gateway, mine), await start(gateway, others)
    claimed = await gateway.queue.claim(WORKER, deployment="sim", want=5)
    assert {one.stream_id for one in claimed} == {first.stream_id, foreign.stream_id}
    (standing,) = await gateway.queue.places([second.stream_id])
    assert standing is not None
    assert standing.is_own_limit
    (running,) = [one for one in claimed if one.stream_id == first.stream_id]
    await gateway.queue.settle(
        first.stream_id,
        epoch=running.epoch,
        incarnation=WORKER,
        state=StreamState.FINISHED,
        log_ttl_seconds=10,
        finish_reason=FinishReason.STOP,
    )
    (next_one,) = await gateway.queue.claim(WORKER, deployment="sim", want=5)
    assert next_one.stream_id == second.stream_id
    assert await gateway.redis.scard(redis_keys.slots_key("q")) == 1
    for one in (first, second, foreign):
        one.subscription.close()


async def test_a_request_may_ask_for_the_priorities_of_its_plan_only(gateway: Gateway) -> None:
    config = snapshot(2, simulated("sim"))
    tenants = [msgspec.structs.replace(one, priority=2, request_priorities=frozenset({3})) for one in config.tenants]
    await publish_snapshot(gateway.redis, msgspec.structs.replace(config, tenants=tenants))
    await gateway.config_reader.refresh()
    caller = gateway.config.authenticate(KEY_A.reveal())
    low = await start(gateway, caller, priority=3)
    usual = await start(gateway, caller)
    assert [one.stream_id for one in await gateway.queue.claim(WORKER, deployment="sim", want=2)] == [
        usual.stream_id,
        low.stream_id,
    ]
    with pytest.raises(InvalidRequestError, match="2, 3") as refused:
        await start(gateway, caller, priority=0)
    assert refused.value.param == "priority"
    for one in (low, usual):
        one.subscription.close()


async def test_a_time_that_is_known_is_told_at_once(gateway: Gateway) -> None:
    caller = gateway.config.authenticate(KEY_A.reveal())
    streams = [await start(gateway, caller) for _ in range(MIN_SAMPLES + 3)]
    assert not any(one.place.eta_seconds for one in streams)
    for _ in range(MIN_SAMPLES + 1):
        await gateway.queue.claim(WORKER, deployment="sim", want=1)
    last = await start(gateway, caller)
    assert last.place.position == 3
    assert last.place.eta_seconds is not None
    for one in (*streams, last):
        one.subscription.close()


async def test_who_waited_for_his_own_requests_is_told_so_at_the_end(gateway: Gateway) -> None:
    config = snapshot(2, simulated("sim"))
    quota = QuotaConfig(id="q", scope=QuotaScope.TENANT, tenant_id=TENANT_A, max_parallel_requests=1)
    await publish_snapshot(gateway.redis, msgspec.structs.replace(config, quotas=[quota]))
    await gateway.config_reader.refresh()
    caller = gateway.config.authenticate(KEY_A.reveal())
    streams = [await start(gateway, caller) for _ in range(3)]
    await gateway.queue.claim(WORKER, deployment="sim", want=5)
    _, by_gateway, by_reaper = [one.stream_id for one in streams]
    await stream_expire_in_queue(gateway=gateway, tenant_id=TENANT_A, stream_id=by_gateway)
    await gateway.redis.hset(redis_keys.stream_key(by_reaper), "wait_until_ms", "1")
    await gateway.redis.zadd(redis_keys.deadlines_key(), {by_reaper: 1})
    await wait_for_state(gateway, by_reaper, StreamState.FAILED)
    for stream_id in (by_gateway, by_reaper):
        end = await gateway.token_log.tail(stream_id)
        assert isinstance(end, Ended)
        assert end.error is not None
        assert (end.error.code, "max_parallel_requests" in end.error.message) == ("rate_limit_exceeded", True)
    for one in streams:
        one.subscription.close()


async def test_a_full_queue_tells_when_its_next_place_is_free(gateway: Gateway) -> None:
    await publish_snapshot(gateway.redis, snapshot(2, simulated("sim", queue_limit=1)))
    await gateway.config_reader.refresh()
    caller = gateway.config.authenticate(KEY_A.reveal())
    waiting = await start(gateway, caller)
    with pytest.raises(ServerOverloadedError) as refused:
        await start(gateway, caller)
    assert refused.value.retry_after_seconds == RETRY_AFTER_SECONDS, "nothing was measured yet"
    await gateway.queue.renew(WORKER, lease_seconds=60, owned=[], channels=[], serving=("sim", 4))
    measured: dict[Any, Any] = {"place": msgspec.msgpack.encode([120_000.0, MIN_SAMPLES])}
    await gateway.redis.hset(redis_keys.pace_key("sim"), mapping=measured)
    with pytest.raises(ServerOverloadedError) as refused:
        await start(gateway, caller)
    assert refused.value.retry_after_seconds == 30.0, "one of four places that take two minutes each"
    waiting.subscription.close()
