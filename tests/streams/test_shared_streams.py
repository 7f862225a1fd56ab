"""Callers of the same static request at the same time: one stream, and each has its own reading, end and bill."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import msgspec
import pytest

from apps.streams.gateway import Gateway
from apps.streams.services import (
    CacheControls,
    CacheWord,
    StartedStream,
    stream_attach,
    stream_cancel,
    stream_leave,
)
from headrace_wire import flights, redis_keys
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.errors import InvalidApiKeyError, StreamCancelledError, StreamNotFoundError
from headrace_wire.messages import (
    FinishReason,
    StreamState,
)
from headrace_wire.request_queue import Verdict
from headrace_wire.snapshot import DetachedPolicy, QuotaConfig, QuotaScope
from headrace_wire.usage_events import AnswerSource
from tests.support.snapshots import KEY_A, TENANT_A, TENANT_B, api_key

from .answers_desk import PATIENCE, TEXT, Desk, caller
from .conftest import WORKER
from .patience import until


async def test_50_identical_requests_run_once_and_one_cancel_disturbs_nobody(desk: Desk) -> None:
    everybody = await asyncio.gather(*[desk.ask() for _ in range(50)])
    assert len({started.stream_id for started in everybody}) == 50
    (claimed,) = await desk.claim()
    (host,) = [started for started in everybody if started.stream_id == claimed.stream_id]
    quitter = next(started for started in everybody if started is not host)
    assert sum(started.cache.word is CacheWord.HIT for started in everybody) == 49
    await desk.write(claimed)
    for leaver in (quitter, host):
        await stream_cancel(gateway=desk.gateway, tenant_id=TENANT_A, stream_id=leaver.stream_id, reason="client")
        with pytest.raises(StreamCancelledError):
            await desk.read(leaver)
    assert await desk.state_of(claimed.stream_id) == "running"
    await desk.end(claimed)
    others = [started for started in everybody if started not in (quitter, host)]
    assert set(await asyncio.gather(*map(desk.read, others))) == {TEXT}
    assert await desk.claim() == []
    rows = {event.stream_id: event for event in await desk.ledger()}
    assert len(rows) == 50, "each caller is booked once"
    assert sum(event.completion_tokens for event in rows.values()) == 5
    assert rows[quitter.stream_id].state is StreamState.CANCELLED
    assert {rows[started.stream_id].source for started in others} == {AnswerSource.SHARED}
    assert {rows[started.stream_id].owner for started in others} == {WORKER}, "who wrote it"


async def test_the_last_caller_that_cancels_stops_the_engine(desk: Desk) -> None:
    host, rider = await desk.ask(), await desk.ask()
    (claimed,) = await desk.claim()
    await stream_cancel(gateway=desk.gateway, tenant_id=TENANT_A, stream_id=host.stream_id, reason="client")
    assert await desk.cancel_of(claimed.stream_id) is None
    await stream_cancel(gateway=desk.gateway, tenant_id=TENANT_A, stream_id=rider.stream_id, reason="client")
    assert await desk.cancel_of(claimed.stream_id) == b"client"
    for started in (host, rider):
        desk.leave(started)


async def test_the_last_caller_that_leaves_stops_the_engine(desk: Desk) -> None:
    host, rider = await desk.ask(), await desk.ask()
    (claimed,) = await desk.claim()
    desk.leave(host)
    await desk.write(claimed)
    assert await asyncio.wait_for(rider.subscription.next(), PATIENCE)
    assert await desk.cancel_of(claimed.stream_id) is None
    desk.leave(rider)
    await desk.cancelled(claimed.stream_id)


async def test_a_cancel_after_everybody_else_has_left_stops_the_engine_at_once(desk: Desk) -> None:
    host, rider = await desk.ask(can_return=True), await desk.ask()
    (claimed,) = await desk.claim()
    desk.leave(rider)
    await stream_cancel(gateway=desk.gateway, tenant_id=TENANT_A, stream_id=host.stream_id, reason="client")
    with pytest.raises(StreamCancelledError):
        await asyncio.wait_for(host.subscription.next(), PATIENCE)
    tenant = caller(desk.gateway).tenant
    assert tenant.detached_policy is DetachedPolicy.FINISH
    stream_leave(gateway=desk.gateway, tenant=tenant, subscription=host.subscription)
    await desk.cancelled(claimed.stream_id)


async def test_a_caller_that_wants_an_answer_of_its_own_gets_one_beside_a_running_one(desk: Desk) -> None:
    host, own = await desk.ask(), await desk.ask(controls=CacheControls(no_cache=True))
    assert own.cache.word is CacheWord.MISS
    for claimed in await desk.claim():
        await desk.answer(claimed)
    assert await desk.read(host) == await desk.read(own) == TEXT


async def test_a_request_after_a_cancel_has_a_stream_of_its_own(desk: Desk) -> None:
    first = await desk.ask()
    (claimed,) = await desk.claim()
    await stream_cancel(gateway=desk.gateway, tenant_id=TENANT_A, stream_id=first.stream_id, reason="client")
    second = await desk.ask()
    assert second.cache.word is CacheWord.MISS
    await desk.end(claimed, state=StreamState.CANCELLED, finish=FinishReason.ABORT)
    (again,) = await desk.claim()
    await desk.answer(again)
    assert await desk.read(second) == TEXT
    desk.leave(first)


async def test_a_caller_who_lost_its_connection_comes_back_to_what_it_was_given(desk: Desk) -> None:
    host, rider = await desk.ask(can_return=True), await desk.ask(can_return=True)
    (claimed,) = await desk.claim()
    rider.subscription.close()
    await desk.write(claimed)
    back, _ = await stream_attach(gateway=desk.gateway, caller=caller(desk.gateway), stream_id=rider.stream_id, after=0)
    await desk.end(claimed)
    assert await desk.read(msgspec.structs.replace(rider, subscription=back)) == TEXT
    assert await desk.read(host) == TEXT


async def test_another_tenants_same_request_has_a_stream_of_its_own(desk: Desk) -> None:
    mine, theirs = await desk.ask(), await desk.ask(of=TENANT_B)
    assert theirs.cache.word is CacheWord.MISS
    assert len(await desk.claim()) == 2
    for started in (mine, theirs):
        started.subscription.close()


async def test_a_failure_is_everybodys_and_is_charged_to_nobody_else(desk: Desk) -> None:
    host, rider = await desk.ask(), await desk.ask()
    (claimed,) = await desk.claim()
    await desk.answer(claimed, state=StreamState.FAILED, finish=FinishReason.ERROR)
    for started in (host, rider):
        await desk.read(started)
    shared = next(event for event in await desk.ledger() if event.source is AnswerSource.SHARED)
    assert (shared.state, shared.completion_tokens) == (StreamState.FAILED, 0)
    left = [key async for key in desk.gateway.redis.scan_iter(redis_keys.flight_key(TENANT_A, "*"))]
    assert left == []
    assert await desk.asked() is CacheWord.MISS, "nobody is given a failed stream"


async def test_a_key_that_is_revoked_ends_nobody_elses_reading(desk: Desk) -> None:
    other = ApiKeyToken("cccccccccccc", "C" * 40)
    keys = [*desk.config.api_keys, api_key(other, TENANT_A)]
    await desk.configure(api_keys=keys)
    host, rider = await desk.ask(), await desk.ask(key=other)
    (claimed,) = await desk.claim()
    await desk.write(claimed)
    revoked = [msgspec.structs.replace(key, revoked=key.public_id == KEY_A.public_id) for key in keys]
    await desk.configure(api_keys=revoked)
    with pytest.raises(InvalidApiKeyError):
        await desk.read(host, key=other)
    await desk.end(claimed)
    assert await desk.read(rider, key=other) == TEXT
    assert await desk.cancel_of(claimed.stream_id) is None


async def comes_late(desk: Desk, rider: StartedStream, host: str, elsewhere: Gateway) -> None:
    """Have a caller be where it was when it had been given the stream, and did not read it yet."""
    rider.subscription.close()
    await desk.gateway.token_log.detach(host, elsewhere.incarnation)
    redis, now = desk.gateway.redis, await desk.gateway.redis.time()
    await redis.hset(redis_keys.coming_key(host), rider.stream_id, int(now[0]) * 1000)


async def test_a_caller_who_is_given_a_stream_as_the_first_one_leaves_it_keeps_it(
    desk: Desk, elsewhere: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "COMING_SECONDS", PATIENCE)
    host, rider = await desk.ask(), await desk.ask(gateway=elsewhere)
    (claimed,) = await desk.claim()
    assert not await desk.gateway.redis.exists(redis_keys.coming_key(claimed.stream_id)), "it reads"
    await comes_late(desk, rider, claimed.stream_id, elsewhere)
    desk.leave(host)

    async def is_unread() -> bool:
        return not await desk.gateway.token_log.is_read(claimed.stream_id)

    await until(is_unread)
    back, _ = await stream_attach(gateway=elsewhere, caller=caller(elsewhere), stream_id=rider.stream_id, after=0)
    await elsewhere.flights.reads(rider.stream_id, host=claimed.stream_id)
    await desk.gateway.detachment.finish()
    assert await desk.cancel_of(claimed.stream_id) is None
    await desk.answer(claimed)
    assert await desk.read(msgspec.structs.replace(rider, subscription=back), gateway=elsewhere) == TEXT


async def test_one_who_was_given_it_and_never_comes_keeps_it_for_a_while_only(
    desk: Desk, elsewhere: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "COMING_SECONDS", 2.0)
    host, rider = await desk.ask(), await desk.ask(gateway=elsewhere)
    (claimed,) = await desk.claim()
    await comes_late(desk, rider, claimed.stream_id, elsewhere)
    desk.leave(host)
    await desk.cancelled(claimed.stream_id)


async def test_nobody_is_given_a_stream_that_is_being_stopped(desk: Desk) -> None:
    host = await desk.ask()
    (claimed,) = await desk.claim()
    assert await desk.gateway.flights.abandon(claimed.stream_id) == 0
    other = await desk.ask()
    assert not other.is_shared
    await desk.gateway.flights.take_up(claimed.stream_id)
    for started in (host, other):
        desk.leave(started)


async def test_a_repeated_admission_of_a_caller_is_given_the_same_stream(desk: Desk) -> None:
    host, rider = await desk.ask(), await desk.ask()
    (claimed,) = await desk.claim()
    call = desk.gateway.queue.admit_call(
        msgspec.structs.replace(claimed.request, stream_id=rider.stream_id), queue_limit=9, queue_timeout_seconds=9
    )
    again = desk.gateway.queue.parse_admission(await desk.gateway.functions.call(*call))
    assert (again.verdict, again.duplicate_of) == (Verdict.RIDES, host.stream_id)
    await desk.answer(claimed)
    assert await desk.read(host) == await desk.read(rider) == TEXT


@pytest.fixture
async def elsewhere(desk: Desk, redis_url: str) -> AsyncIterator[Gateway]:
    """Another gateway of the same installation."""
    other = Gateway(redis_url=redis_url, secret_key="test")
    await other.start()
    yield other
    await other.stop()


async def test_callers_at_two_gateways_share_a_stream(desk: Desk, elsewhere: Gateway) -> None:
    host, rider = await desk.ask(), await desk.ask(gateway=elsewhere)
    (claimed,) = await desk.claim()
    await desk.answer(claimed)
    assert await desk.read(host) == await desk.read(rider, gateway=elsewhere) == TEXT


@pytest.mark.parametrize("who", ["host", "rider"])
async def test_a_cancel_is_heard_where_the_caller_reads_and_nowhere_else(
    desk: Desk, elsewhere: Gateway, who: str
) -> None:
    host, rider = await desk.ask(), await desk.ask(gateway=elsewhere)
    (claimed,) = await desk.claim()
    await desk.write(claimed)
    mine, other = (desk.gateway, elsewhere) if who == "host" else (elsewhere, desk.gateway)
    quitter, stayer = (host, rider) if who == "host" else (rider, host)
    await stream_cancel(gateway=other, tenant_id=TENANT_A, stream_id=quitter.stream_id, reason="client")
    with pytest.raises(StreamCancelledError):
        await desk.read(quitter, gateway=mine)
    assert await desk.cancel_of(claimed.stream_id) is None
    await desk.end(claimed)
    assert await desk.read(stayer, gateway=other) == TEXT


async def test_another_tenant_can_neither_cancel_nor_read_what_a_caller_was_given(desk: Desk) -> None:
    host, rider = await desk.ask(), await desk.ask()
    (claimed,) = await desk.claim()
    for started in (host, rider):
        with pytest.raises(StreamNotFoundError):
            await stream_cancel(gateway=desk.gateway, tenant_id=TENANT_B, stream_id=started.stream_id, reason="client")
        stranger = caller(desk.gateway, of=TENANT_B)
        with pytest.raises(StreamNotFoundError):
            await stream_attach(gateway=desk.gateway, caller=stranger, stream_id=started.stream_id, after=0)
    await desk.answer(claimed)
    assert await desk.read(host) == await desk.read(rider) == TEXT


# ---- a shared stream whose worker fails


async def test_who_shares_a_stream_that_its_worker_failed_is_admitted_again_once(desk: Desk) -> None:
    host, *riders = [await desk.ask(can_return=True) for _ in range(3)]
    (claimed,) = await desk.claim()
    await desk.fail(claimed)
    reading = [asyncio.create_task(desk.read(started)) for started in riders]
    with pytest.raises(AssertionError, match="engine_error"):
        await desk.read(host)
    (again,) = await desk.claim_one()
    assert again.stream_id not in {started.stream_id for started in (host, *riders)}
    await desk.answer(again)
    assert await asyncio.gather(*reading) == [TEXT, TEXT], "the two share again, and nothing came twice"
    rows = {event.stream_id: event for event in await desk.ledger()}
    assert [rows[started.stream_id].state for started in riders] == [StreamState.FAILED] * 2
    seconds = [event for name, event in rows.items() if name not in {s.stream_id for s in (host, *riders)}]
    assert sorted(event.source for event in seconds) == [AnswerSource.ENGINE, AnswerSource.SHARED]
    assert sum(event.completion_tokens for event in rows.values()) == 5


async def test_the_second_failure_is_told(desk: Desk) -> None:
    _, rider = await desk.ask(), await desk.ask()
    reading = asyncio.create_task(desk.read(rider))
    await desk.fail((await desk.claim())[0])
    await desk.fail((await desk.claim_one())[0])
    with pytest.raises(AssertionError, match="engine_error"):
        await reading
    assert await desk.claim() == []


async def test_who_was_given_a_part_is_told_of_the_failure(desk: Desk) -> None:
    _, rider = await desk.ask(), await desk.ask()
    (claimed,) = await desk.claim()
    await desk.write(claimed)
    assert await asyncio.wait_for(rider.subscription.next(), PATIENCE)
    await desk.fail(claimed)
    with pytest.raises(AssertionError, match="engine_error"):
        await desk.read(rider)
    assert await desk.claim() == []


async def test_a_second_admission_is_held_to_the_callers_quotas(desk: Desk) -> None:
    await desk.configure(quotas=[QuotaConfig(id="q", scope=QuotaScope.TENANT, tenant_id=TENANT_A, rpm_limit=2)])
    _, rider = await desk.ask(), await desk.ask()
    reading = asyncio.create_task(desk.read(rider))
    await desk.fail((await desk.claim())[0])
    with pytest.raises(AssertionError, match="engine_error"):
        await reading
    assert await desk.claim() == []


async def test_what_a_guardrail_says_is_everybodys(desk: Desk) -> None:
    _, rider = await desk.ask(), await desk.ask()
    await desk.fail((await desk.claim())[0], code="content_filter")
    with pytest.raises(AssertionError, match="content_filter"):
        await desk.read(rider)
    assert await desk.claim() == []


async def leads_to(desk: Desk, stream_id: str, second: str) -> bool:
    record = await desk.gateway.queue.record(stream_id)
    return record is not None and record.second == second


async def test_the_id_that_a_caller_knows_resumes_and_cancels_its_second_stream(desk: Desk) -> None:
    _, rider = await desk.ask(), await desk.ask(can_return=True)
    reading = asyncio.create_task(desk.read(rider))
    await desk.fail((await desk.claim())[0])
    (again,) = await desk.claim_one()
    await until(partial(leads_to, desk, rider.stream_id, again.stream_id))  # it is admitted before it is led to
    back, _ = await stream_attach(gateway=desk.gateway, caller=caller(desk.gateway), stream_id=rider.stream_id, after=0)
    await stream_cancel(gateway=desk.gateway, tenant_id=TENANT_A, stream_id=rider.stream_id, reason="client")
    assert await desk.cancel_of(again.stream_id) == b"client"
    await desk.answer(again)
    assert await reading == TEXT
    assert await desk.read(msgspec.structs.replace(rider, subscription=back)) == TEXT
