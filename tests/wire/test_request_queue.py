"""Ownership of streams, on a real Redis: who may do what, and that a refusal changes nothing."""

from typing import Any

import pytest

from headrace_wire import codec, redis_keys
from headrace_wire.functions import Functions, Reply
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import Cancel, Credit, StreamState, WarmUp
from headrace_wire.request_queue import TOMBSTONE_SECONDS, CancelOutcome, GivenBack, LeaseLostError, Reaped, Verdict

from .conftest import GATEWAY, WORKER, Wire


async def expire(wire: Wire, incarnation: str) -> None:
    """Move the lease of an incarnation into the past, as if its process had hung."""
    await wire.redis.zadd(redis_keys.incarnations_key(), {incarnation: 1})


async def test_admit_then_claim_hands_over_the_request_in_order(wire: Wire) -> None:
    first, second = new_stream_id(), new_stream_id()
    assert await wire.admit(first) == (Verdict.QUEUED, 1)
    assert await wire.admit(second) == (Verdict.QUEUED, 2)
    claimed = await wire.queue.claim(WORKER, deployment="m", want=5)
    assert [c.stream_id for c in claimed] == [first, second]
    assert claimed[0].request.stream_id == first
    assert claimed[0].attempt == 1
    assert not claimed[0].is_late
    assert claimed[0].epoch > 1_700_000_000_000, "an epoch is close to the clock"
    assert await wire.queue.claim(WORKER, deployment="m", want=5) == []


async def test_admit_is_idempotent_by_stream_id(wire: Wire) -> None:
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    assert await wire.admit(stream_id) == (Verdict.KNOWN, 0)
    assert len(await wire.queue.claim(WORKER, deployment="m", want=5)) == 1


async def test_full_queue_refuses_and_changes_nothing(wire: Wire) -> None:
    await wire.admit(new_stream_id(), queue_limit=1)
    refused = new_stream_id()
    assert await wire.admit(refused, queue_limit=1) == (Verdict.FULL, 1)
    assert await wire.queue.waiting("m") == 1
    assert await wire.queue.record(refused) is None


async def test_late_stream_is_marked(wire: Wire) -> None:
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    await wire.redis.hset(redis_keys.stream_key(stream_id), "deadline_ms", "1")
    (claimed,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    assert claimed.is_late


async def test_a_stream_that_was_served_before_is_never_late(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    await wire.redis.hset(redis_keys.stream_key(stream_id), "deadline_ms", "1")
    await wire.queue.requeue(stream_id, epoch=epoch, incarnation=WORKER, deployment="m", max_attempts=3, counts=False)
    (claimed,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    assert not claimed.is_late


async def test_settle_happens_once_and_only_by_the_owner(wire: Wire) -> None:
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    (claimed,) = await wire.queue.claim(WORKER, deployment="m", want=1)

    async def settle(epoch: int) -> bool:
        return await wire.queue.settle(
            stream_id, epoch=epoch, incarnation=WORKER, state=StreamState.FINISHED, log_ttl_seconds=10
        )

    assert not await settle(claimed.epoch - 1)
    assert await settle(claimed.epoch)
    assert not await settle(claimed.epoch)
    record = await wire.queue.record(stream_id)
    assert record is not None
    assert record.state is StreamState.FINISHED


async def test_the_record_of_an_ended_stream_is_small(wire: Wire) -> None:
    """It stays for a day: as the table that had the request in it, it would take 1.1 KB."""
    stream_id, epoch = await claimed_stream(wire)
    key = redis_keys.stream_key(stream_id)
    assert await wire.redis.object("encoding", key) == b"hashtable"
    await wire.queue.settle(stream_id, epoch=epoch, incarnation=WORKER, state=StreamState.FINISHED, log_ttl_seconds=10)
    assert await wire.redis.object("encoding", key) == b"listpack"
    assert 0 < await wire.redis.ttl(key) <= 10 + TOMBSTONE_SECONDS


async def test_expired_lease_is_final(wire: Wire) -> None:
    await expire(wire, WORKER)
    with pytest.raises(LeaseLostError):
        await wire.queue.claim(WORKER, deployment="m", want=1)
    with pytest.raises(LeaseLostError):
        await wire.queue.renew(WORKER, lease_seconds=60, owned=[], channels=[])
    with pytest.raises(LeaseLostError):
        await wire.queue.enlist(WORKER, lease_seconds=60, channels=[])


async def test_reap_takes_streams_of_the_dead_under_a_new_epoch(wire: Wire) -> None:
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    (claimed,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    assert await wire.queue.reap(GATEWAY) == Reaped([], [], [])
    await expire(wire, WORKER)
    reaped = await wire.queue.reap(GATEWAY)
    assert (reaped.dead, reaped.settled) == ([WORKER], [])
    (taken,) = reaped.taken
    assert taken.stream_id == stream_id
    assert taken.epoch > claimed.epoch
    assert taken.tenant_id == "t"
    assert await wire.queue.prompt_tokens(stream_id) == len(claimed.request.prompt_ids) // 4
    assert not await wire.queue.settle(
        stream_id, epoch=claimed.epoch, incarnation=WORKER, state=StreamState.FINISHED, log_ttl_seconds=10
    )
    assert await wire.queue.settle(
        stream_id, epoch=taken.epoch, incarnation=GATEWAY, state=StreamState.FAILED, log_ttl_seconds=10
    )


async def test_a_reaper_that_dies_is_reaped(wire: Wire) -> None:
    await wire.admit(new_stream_id())
    await wire.queue.claim(WORKER, deployment="m", want=1)
    await expire(wire, WORKER)
    await wire.queue.reap(GATEWAY)
    await expire(wire, GATEWAY)
    await wire.queue.enlist("gateway-other", lease_seconds=60, channels=[])
    assert len((await wire.queue.reap("gateway-other")).taken) == 1


async def test_an_end_that_may_not_have_been_published_is_reaped(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    await wire.queue.settle(stream_id, epoch=epoch, incarnation=WORKER, state=StreamState.FINISHED, log_ttl_seconds=10)
    await expire(wire, WORKER)
    assert await wire.queue.reap(GATEWAY) == Reaped([WORKER], [], [stream_id])
    await expire(wire, GATEWAY)
    await wire.queue.enlist("gateway-other", lease_seconds=60, channels=[])
    reaped = await wire.queue.reap("gateway-other")
    assert reaped.settled == [stream_id], "the reaper died before it had published"


async def test_a_settled_stream_leaves_the_table_of_a_living_owner(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    await wire.queue.settle(stream_id, epoch=epoch, incarnation=WORKER, state=StreamState.FINISHED, log_ttl_seconds=10)
    table = redis_keys.assigned_key(WORKER)
    await wire.redis.hset(table, stream_id, f"{epoch}:1")
    await wire.queue.renew(WORKER, lease_seconds=60, owned=[(stream_id, epoch, 0)], channels=[])
    assert await wire.redis.hexists(table, stream_id), "listed: its end is not published yet"
    await wire.queue.renew(WORKER, lease_seconds=60, owned=[], channels=[])
    assert not await wire.redis.exists(table)
    record = await wire.queue.record(stream_id)
    assert record is not None
    assert record.state is StreamState.FINISHED


async def test_a_claim_of_all_that_waits_silences_the_bell(wire: Wire) -> None:
    async def heard() -> bool:
        return bool(await wire.redis.lpop(redis_keys.bell_key("m")))

    for _ in range(5):
        await wire.admit(new_stream_id())
    assert await heard()
    assert len(await wire.queue.claim(WORKER, deployment="m", want=2)) == 2
    assert await heard(), "others wait"
    assert len(await wire.queue.claim(WORKER, deployment="m", want=4)) == 3
    assert not await heard(), "for nobody"
    await wire.admit(new_stream_id())
    assert await heard()


async def test_renew_tells_lost_and_cancelled(wire: Wire) -> None:
    lost, cancelled = new_stream_id(), new_stream_id()
    await wire.admit(lost)
    await wire.admit(cancelled)
    a, b = await wire.queue.claim(WORKER, deployment="m", want=2)
    await wire.redis.hset(redis_keys.stream_key(lost), "epoch", str(a.epoch + 1))
    outcome, _ = await wire.queue.cancel(cancelled, tenant_id="t", reason="client", incarnation=GATEWAY)
    assert outcome is CancelOutcome.RUNNING
    renewal = await wire.queue.renew(
        WORKER, lease_seconds=60, owned=[(lost, a.epoch, 0), (cancelled, b.epoch, 0)], channels=[]
    )
    assert renewal.lost == {lost}
    assert renewal.cancelled == {cancelled: "client"}


async def test_assigned_but_unlisted_goes_back_to_the_head(wire: Wire) -> None:
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    (first,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    await wire.admit(new_stream_id())
    await wire.queue.renew(WORKER, lease_seconds=60, owned=[], channels=[])
    assert (await wire.queue.record(stream_id)) is not None, "within the grace nothing happens"
    await wire.redis.hset(redis_keys.assigned_key(WORKER), stream_id, f"{first.epoch}:1")
    await wire.queue.renew(WORKER, lease_seconds=60, owned=[], channels=[])
    (again,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    assert again.stream_id == stream_id
    assert again.attempt == 2
    assert again.epoch > first.epoch


async def test_cancel_of_a_queued_stream_frees_its_place(wire: Wire) -> None:
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    outcome, epoch = await wire.queue.cancel(stream_id, tenant_id="t", reason="client", incarnation=GATEWAY)
    assert outcome is CancelOutcome.QUEUED
    assert await wire.queue.waiting("m") == 0
    assert await wire.queue.settle(
        stream_id, epoch=epoch, incarnation=GATEWAY, state=StreamState.CANCELLED, log_ttl_seconds=10
    )
    again = await wire.queue.cancel(stream_id, tenant_id="t", reason="client", incarnation=GATEWAY)
    assert again == (CancelOutcome.ENDED, epoch)


async def test_cancel_by_another_tenant_is_unknown_and_changes_nothing(wire: Wire) -> None:
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    outcome, _ = await wire.queue.cancel(stream_id, tenant_id="other", reason="client", incarnation=GATEWAY)
    assert outcome is CancelOutcome.UNKNOWN
    assert len(await wire.queue.claim(WORKER, deployment="m", want=1)) == 1


async def test_owner_is_told_in_its_control_channel(wire: Wire) -> None:
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    assert await wire.queue.tell([(stream_id, Credit(stream_id, 9))]) == 0, "nobody owns it yet"
    await wire.queue.claim(WORKER, deployment="m", want=1)
    await wire.queue.cancel(stream_id, tenant_id="t", reason="client", incarnation=GATEWAY)
    assert await wire.queue.tell([(stream_id, Credit(stream_id, 9)), (f"@{WORKER}", WarmUp())]) == 2
    rows: Reply = await wire.redis.xrange(redis_keys.control_key(WORKER))
    told = [codec.decode_control(fields[b"d"]) for _, fields in rows[1:]]
    assert told == [Cancel(stream_id, "client"), Credit(stream_id, 9), WarmUp()]


async def test_library_is_loaded_again_after_redis_lost_it(wire: Wire) -> None:
    await wire.redis.function_flush()
    assert await wire.admit(new_stream_id()) == (Verdict.QUEUED, 1)
    await Functions(wire.redis).load()


async def claimed_stream(wire: Wire) -> tuple[str, int]:
    """Admit a stream and claim it; return its id and epoch."""
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    (claimed,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    return stream_id, claimed.epoch


async def told(wire: Wire) -> list[object]:
    rows: Reply = await wire.redis.xrange(redis_keys.control_key(WORKER))
    return [codec.decode_control(fields[b"d"]) for _, fields in rows[1:]]


async def test_credit_only_rises_and_its_owner_is_told(wire: Wire) -> None:
    stream_id, _ = await claimed_stream(wire)
    assert await wire.queue.credit([(stream_id, 50), ("strm-unknown", 50)]) == 1
    assert await wire.queue.credit([(stream_id, 50)]) == 0
    assert await wire.queue.credit([(stream_id, 20), (stream_id, 60)]) == 1
    assert await told(wire) == [Credit(stream_id, 50), Credit(stream_id, 60)]


async def test_a_suspended_stream_comes_back_with_more_credit_and_keeps_its_attempts(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    give_up: dict[str, Any] = {"incarnation": WORKER, "deployment": "m", "credit": 0, "reason": "slow_consumer"}
    assert await wire.queue.suspend(stream_id, epoch=epoch - 1, **give_up) is GivenBack.LOST
    assert await wire.queue.suspend(stream_id, epoch=epoch, **give_up) is GivenBack.SUSPENDED
    assert await wire.queue.suspend(stream_id, epoch=epoch, **give_up) is GivenBack.LOST
    assert await wire.queue.claim(WORKER, deployment="m", want=1) == []
    assert (await wire.queue.renew(WORKER, lease_seconds=60, owned=[], channels=[])).lost == frozenset()
    other = new_stream_id()
    await wire.admit(other)
    assert await wire.queue.credit([(stream_id, 40)]) == 1
    first, second = await wire.queue.claim(WORKER, deployment="m", want=2)
    assert (first.stream_id, first.credit, first.attempt) == (stream_id, 40, 1)
    assert second.stream_id == other


async def test_credit_that_crosses_a_suspension_is_not_lost(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    await wire.queue.credit([(stream_id, 40)])
    outcome = await wire.queue.suspend(
        stream_id, epoch=epoch, incarnation=WORKER, deployment="m", credit=30, reason="slow_consumer"
    )
    assert outcome is GivenBack.QUEUED
    (again,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    assert again.stream_id == stream_id


async def test_cancel_of_a_suspended_stream_makes_the_caller_end_it(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    await wire.queue.suspend(stream_id, epoch=epoch, incarnation=WORKER, deployment="m", credit=0, reason="x")
    outcome, taken = await wire.queue.cancel(stream_id, tenant_id="t", reason="client", incarnation=GATEWAY)
    assert outcome is CancelOutcome.QUEUED
    assert taken > epoch
    assert await wire.queue.credit([(stream_id, 99)]) == 1, "recorded, and nobody is queued by it"
    assert await wire.queue.claim(WORKER, deployment="m", want=1) == []


async def test_requeue_is_bounded_by_attempts(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    back: dict[str, Any] = {"incarnation": WORKER, "deployment": "m", "max_attempts": 2}
    assert await wire.queue.requeue(stream_id, epoch=epoch - 1, **back) is GivenBack.LOST
    assert await wire.queue.requeue(stream_id, epoch=epoch, **back) is GivenBack.QUEUED
    (again,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    assert again.attempt == 2
    assert again.epoch > epoch
    assert await wire.queue.requeue(stream_id, epoch=again.epoch, **back) is GivenBack.EXHAUSTED
    assert await wire.queue.settle(
        stream_id, epoch=again.epoch, incarnation=WORKER, state=StreamState.FAILED, log_ttl_seconds=10
    )


async def test_marks_are_the_owners_alone(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    assert await wire.queue.mark([(stream_id, epoch - 1, StreamState.HELD, "")]) == 0
    assert await wire.queue.mark([(stream_id, epoch, StreamState.HELD, "slow_consumer")]) == 1
    record = await wire.queue.record(stream_id)
    assert record is not None
    assert record.state is StreamState.HELD


async def test_a_stream_that_is_suspended_for_too_long_is_reaped(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    await wire.queue.suspend(stream_id, epoch=epoch, incarnation=WORKER, deployment="m", credit=0, reason="x")
    assert await wire.queue.reap(GATEWAY) == Reaped([], [], [])
    await wire.redis.zadd(redis_keys.suspended_key(), {stream_id: 1})
    (taken,) = (await wire.queue.reap(GATEWAY)).taken
    assert (taken.stream_id, taken.cancel_reason) == (stream_id, "suspended_too_long")
    assert taken.epoch > epoch
    assert await wire.queue.reap(GATEWAY) == Reaped([], [], [])
    assert await wire.queue.settle(
        stream_id, epoch=taken.epoch, incarnation=GATEWAY, state=StreamState.CANCELLED, log_ttl_seconds=10
    )


async def test_what_goes_on_is_not_suspended_any_more(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    await wire.queue.suspend(stream_id, epoch=epoch, incarnation=WORKER, deployment="m", credit=0, reason="x")
    await wire.queue.credit([(stream_id, 40)])
    assert await wire.redis.zcard(redis_keys.suspended_key()) == 0


async def test_a_cancelled_stream_is_not_given_back(wire: Wire) -> None:
    """Its record knows that it was cancelled: the owner keeps it and ends it, or nobody would."""
    stream_id, epoch = await claimed_stream(wire)
    await wire.queue.cancel(stream_id, tenant_id="t", reason="client", incarnation=GATEWAY)
    back: dict[str, Any] = {"epoch": epoch, "incarnation": WORKER, "deployment": "m"}
    assert await wire.queue.suspend(stream_id, **back, credit=0, reason="x") is GivenBack.CANCELLED
    assert await wire.queue.requeue(stream_id, **back, max_attempts=3) is GivenBack.CANCELLED
    renewal = await wire.queue.renew(WORKER, lease_seconds=60, owned=[(stream_id, epoch, 0)], channels=[])
    assert renewal.cancelled == {stream_id: "client"}


async def test_attempts_count_those_in_a_row_that_came_to_nothing(wire: Wire) -> None:
    stream_id, epoch = await claimed_stream(wire)
    back: dict[str, Any] = {"incarnation": WORKER, "deployment": "m", "max_attempts": 2}
    for _ in range(5):
        assert await wire.queue.requeue(stream_id, epoch=epoch, **back, counts=False) is GivenBack.QUEUED
        (again,) = await wire.queue.claim(WORKER, deployment="m", want=1)
        assert again.attempt == 1
        epoch = again.epoch
    for _ in range(5):
        assert await wire.queue.requeue(stream_id, epoch=epoch, **back) is GivenBack.QUEUED
        (again,) = await wire.queue.claim(WORKER, deployment="m", want=1)
        assert again.attempt == 2
        epoch = again.epoch
        await wire.queue.progress([(stream_id, epoch), (stream_id, epoch - 1), (new_stream_id(), 1)])
    await wire.queue.requeue(stream_id, epoch=epoch, **back)
    (again,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    assert await wire.queue.requeue(stream_id, epoch=again.epoch, **back) is GivenBack.EXHAUSTED
    await wire.queue.progress([(stream_id, epoch)])
    assert await wire.queue.requeue(stream_id, epoch=again.epoch, **back) is GivenBack.EXHAUSTED, "an old owner's word"


async def test_a_claim_says_whether_somebody_had_the_stream(wire: Wire) -> None:
    stream_id = new_stream_id()
    await wire.admit(stream_id)
    (first,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    assert not first.had_owner
    await wire.queue.suspend(
        stream_id, epoch=first.epoch, incarnation=WORKER, deployment="m", credit=first.credit, reason="x"
    )
    await wire.queue.credit([(stream_id, 99)])
    (second,) = await wire.queue.claim(WORKER, deployment="m", want=1)
    assert second.had_owner
    assert (second.attempt, second.credit) == (1, 99)


async def test_credits_are_read_from_the_records(wire: Wire) -> None:
    stream_id, _ = await claimed_stream(wire)
    await wire.queue.credit([(stream_id, 12)])
    assert await wire.queue.credits([stream_id, new_stream_id()]) == {stream_id: 12}
