"""The circuit breaker in Redis: whichever gateway calls, there is one state, and it moves when it is time.

Time is moved by moving what the breaker remembers of it.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.breakers import (
    BreakerReading,
    BreakerState,
    BreakerTerms,
    OpenReason,
    Seen,
    breaker_call,
    breaker_move_call,
    breaker_parse,
    breaker_stored,
)
from headrace_wire.functions import Functions, Reply

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
KEY = redis_keys.breaker_key("m")
TERMS = BreakerTerms(error_share=0.5, min_ends=4, window_seconds=60.0, absent_seconds=10.0, open_seconds=30.0, probes=2)


class Breaker:
    """One deployment's, and a gateway that calls it."""

    def __init__(self, redis: "Redis") -> None:
        self.redis = redis
        self._functions = Functions(redis)

    async def see(self, terms: BreakerTerms = TERMS, **seen: int) -> BreakerReading:
        """Tell what a gateway saw; workers are ready unless `is_ready` is 0, and tries are of this time half open."""
        fields = {"finished": 0, "failed": 0, "is_ready": 1, "is_asked": 0, "wanted": 0, **seen}
        since: Reply = await self.redis.hget(KEY, "since")
        told = Seen(
            fields["finished"],
            fields["failed"],
            bool(fields["is_ready"]),
            bool(fields["is_asked"]),
            fields["wanted"],
            fields.get("tried_finished", 0),
            fields.get("tried_failed", 0),
            fields.get("tried_since_ms", int(since or 0)),
        )
        (reply,) = await self._functions.call_many([breaker_call("m", told, terms)])
        return breaker_parse(reply)

    async def by_hand(self, *, is_open: bool) -> BreakerReading:
        """Move it as a person does."""
        (reply,) = await self._functions.call_many([breaker_move_call("m", is_open=is_open)])
        return breaker_parse(reply)

    async def age(self, field: str, seconds: float) -> None:
        """Have a moment that it remembers lie so much further back."""
        at: Reply = await self.redis.hget(KEY, field)
        assert at is not None, field
        await self.redis.hset(KEY, field, int(at) - int(seconds * 1000))

    async def opened(self) -> int:
        """Return how often it has opened."""
        times: Reply = await self.redis.hget(KEY, "opened")
        return int(times or 0)

    async def half_open(self, *, wanted: int = 0) -> BreakerReading:
        """Open it by failures, and let its time pass."""
        await self.see(failed=4)
        await self.age("since", 31)
        return await self.see(wanted=wanted)


@pytest.fixture
async def breaker(redis_url: str) -> AsyncIterator[Breaker]:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield Breaker(redis)


async def test_it_opens_by_the_share_of_failures_and_not_before_there_are_enough(breaker: Breaker) -> None:
    assert (await breaker.see()).state is CLOSED
    assert await breaker.redis.exists(KEY) == 0, "nothing to remember"
    assert (await breaker.see(failed=2, finished=1)).state is CLOSED, "three of four"
    reading = await breaker.see(finished=1)
    assert (reading.state, reading.reason) == (OPEN, OpenReason.ERRORS)
    assert 29 < reading.retry_after_seconds <= 30
    assert reading.since_ms > 0


async def test_a_smaller_share_does_not_open_it(breaker: Breaker) -> None:
    assert (await breaker.see(finished=5, failed=4)).state is CLOSED
    assert (await breaker.see(finished=100)).state is CLOSED


async def test_what_ended_before_the_window_does_not_count(breaker: Breaker) -> None:
    await breaker.see(failed=3)
    fields: Reply = await breaker.redis.hgetall(KEY)
    ((name, count),) = fields.items()
    await breaker.redis.delete(KEY)
    await breaker.redis.hset(KEY, b"f:%d" % (int(name[2:]) - 6), count)
    assert (await breaker.see(failed=3)).state is CLOSED
    fields = await breaker.redis.hgetall(KEY)
    assert list(fields.values()) == [b"3"], "the old ones are gone"
    assert (await breaker.see(failed=1)).state is OPEN


async def test_another_window_has_no_ends_from_the_future(breaker: Breaker) -> None:
    await breaker.see(failed=3)
    assert (await breaker.see(replace(TERMS, window_seconds=600.0), failed=3)).state is CLOSED


async def test_it_is_tried_after_its_time_and_closes_when_that_succeeds(breaker: Breaker) -> None:
    assert (await breaker.see(failed=4)).state is OPEN
    assert (await breaker.see(finished=100, wanted=9)).state is OPEN, "those began before it opened"
    await breaker.age("since", 31)
    assert (await breaker.see(is_ready=0, wanted=9)).state is OPEN, "there is nobody to try it with"
    reading = await breaker.see(wanted=9)
    assert (reading.state, reading.probes) == (HALF_OPEN, 2)
    assert (await breaker.see(wanted=9)).probes == 0, "no more until these have ended"
    assert (await breaker.see(tried_finished=1, wanted=9)).state is HALF_OPEN
    closed = await breaker.see(tried_finished=1)
    assert (closed.state, closed.reason) == (CLOSED, None)
    assert (await breaker.see(failed=3)).state is CLOSED, "it begins to count anew"


async def test_requests_that_try_it_are_shared_by_gateways(breaker: Breaker) -> None:
    assert (await breaker.half_open()).probes == 0, "who wants none gets none"
    readings = await asyncio.gather(*(breaker.see(wanted=1) for _ in range(8)))
    assert sum(reading.probes for reading in readings) == 2


async def test_a_failure_while_it_is_tried_opens_it_for_twice_as_long(breaker: Breaker) -> None:
    pauses = []
    await breaker.half_open()
    for _ in range(5):
        reading = await breaker.see(failed=1, tried_failed=1)
        assert (reading.state, reading.reason) == (OPEN, OpenReason.ERRORS)
        pauses.append(round(reading.retry_after_seconds))
        await breaker.age("since", 241)
        assert (await breaker.see()).state is HALF_OPEN
    assert pauses == [60, 120, 240, 240, 240]
    assert await breaker.opened() == 6
    assert (await breaker.see(tried_finished=2)).state is CLOSED
    assert round((await breaker.see(failed=4)).retry_after_seconds) == 30, "that is forgotten with its recovery"


async def test_late_ends_of_what_began_before_it_opened_decide_nothing(breaker: Breaker) -> None:
    before = await breaker.half_open(wanted=2)
    assert (await breaker.see(finished=9)).state is HALF_OPEN
    assert (await breaker.see(failed=9)).state is HALF_OPEN
    await breaker.see(tried_failed=1)
    await breaker.age("since", 61)
    assert (await breaker.see()).state is HALF_OPEN
    late = await breaker.see(tried_finished=2, tried_since_ms=before.since_ms)
    assert late.state is HALF_OPEN, "they tried it the time before"
    assert (await breaker.see(tried_finished=2)).state is CLOSED


async def test_who_tried_it_and_is_not_heard_of_is_replaced(breaker: Breaker) -> None:
    assert (await breaker.half_open(wanted=2)).probes == 2
    assert (await breaker.see(wanted=2)).probes == 0
    await breaker.age("granted_ms", 31)
    assert (await breaker.see(wanted=1)).probes == 1


async def test_it_opens_where_somebody_asks_and_nobody_is_there(breaker: Breaker) -> None:
    assert (await breaker.see(is_ready=0)).state is CLOSED
    assert await breaker.redis.exists(KEY) == 0, "nobody asks: a deployment may rest"
    assert (await breaker.see(is_ready=0, is_asked=1)).state is CLOSED
    await breaker.age("absent", 4)
    assert (await breaker.see(is_ready=0)).state is CLOSED
    await breaker.age("absent", 7)
    reading = await breaker.see(is_ready=0)
    assert (reading.state, reading.reason, reading.retry_after_seconds) == (OPEN, OpenReason.ABSENT, 30.0)
    assert (await breaker.see(is_ready=0, wanted=5)).probes == 0
    assert (await breaker.see(wanted=5)).state is CLOSED, "at once, as soon as one is there"


async def test_whoever_starts_workers_sees_that_requests_are_turned_away(breaker: Breaker) -> None:
    await breaker.see(is_ready=0, is_asked=1)
    await breaker.age("absent", 11)
    await breaker.see(is_ready=0)
    assert not await breaker.redis.hexists(KEY, "asked")
    await breaker.see(is_ready=0, is_asked=1, wanted=1)
    asked: Reply = await breaker.redis.hget(KEY, "asked")
    since: Reply = await breaker.redis.hget(KEY, "since")
    assert int(asked) >= int(since)
    await breaker.see()
    assert not await breaker.redis.hexists(KEY, "asked")


async def test_a_worker_that_comes_back_in_time_keeps_it_closed(breaker: Breaker) -> None:
    await breaker.see(is_ready=0, is_asked=1)
    await breaker.age("absent", 6)
    assert (await breaker.see()).state is CLOSED
    assert (await breaker.see(is_ready=0, is_asked=1)).state is CLOSED
    await breaker.age("absent", 5)
    assert (await breaker.see(is_ready=0)).state is CLOSED, "eleven seconds, and not in one piece"


async def test_absence_may_be_left_to_the_queue(breaker: Breaker) -> None:
    patient = replace(TERMS, absent_seconds=0.0)
    await breaker.see(patient, is_ready=0, is_asked=1)
    await breaker.age("absent", 3600)
    assert (await breaker.see(patient, is_ready=0)).state is CLOSED


async def test_the_last_worker_goes_while_it_is_tried(breaker: Breaker) -> None:
    await breaker.half_open(wanted=1)
    await breaker.see(is_ready=0, is_asked=1)
    await breaker.age("absent", 11)
    assert (await breaker.see(is_ready=0)).reason is OpenReason.ABSENT


async def test_many_gateways_open_it_once(breaker: Breaker) -> None:
    readings = await asyncio.gather(*(breaker.see(failed=1) for _ in range(12)))
    assert [reading.state for reading in readings].count(CLOSED) == 3
    assert await breaker.opened() == 1


async def test_what_is_stored_reads_the_same(breaker: Breaker) -> None:
    assert breaker_stored({}) == BreakerReading()
    reading = await breaker.see(failed=4)
    fields: Reply = await breaker.redis.hgetall(KEY)
    stored = breaker_stored(fields)
    assert (stored.state, stored.since_ms, stored.reason) == (reading.state, reading.since_ms, reading.reason)
    assert 0 < await breaker.redis.pttl(KEY) <= 7 * 86_400_000


async def test_what_was_opened_by_hand_stays_until_it_is_closed_by_hand(breaker: Breaker) -> None:
    opened = await breaker.by_hand(is_open=True)
    assert (opened.state, opened.reason) == (OPEN, OpenReason.HAND)
    await breaker.age("since", 1000)
    seen = await breaker.see(finished=100, wanted=5)
    assert (seen.state, seen.reason, seen.probes) == (OPEN, OpenReason.HAND, 0)
    assert await breaker.redis.pexpire(KEY, 60_000)
    await breaker.see()
    left: Reply = await breaker.redis.pttl(KEY)
    assert left > 60_000, "nobody else writes it meanwhile"
    assert (await breaker.by_hand(is_open=False)).state is CLOSED
    assert (await breaker.see()).state is CLOSED


async def test_closing_by_hand_forgets_what_had_opened_it(breaker: Breaker) -> None:
    await breaker.see(failed=4)
    assert (await breaker.by_hand(is_open=False)).state is CLOSED
    assert (await breaker.see(failed=3)).state is CLOSED, "three of four"
    assert (await breaker.see(failed=1)).state is OPEN


async def test_closing_by_hand_gives_absent_workers_their_time_anew(breaker: Breaker) -> None:
    await breaker.see(is_ready=0, is_asked=1)
    await breaker.age("absent", 11)
    assert (await breaker.see(is_ready=0)).reason is OpenReason.ABSENT
    await breaker.by_hand(is_open=False)
    assert (await breaker.see(is_ready=0, is_asked=1)).state is CLOSED
    await breaker.age("absent", 11)
    assert (await breaker.see(is_ready=0)).reason is OpenReason.ABSENT


async def test_a_closed_one_is_closed_by_hand_without_a_trace(breaker: Breaker) -> None:
    assert (await breaker.by_hand(is_open=False)).state is CLOSED
    assert await breaker.redis.exists(KEY) == 0
