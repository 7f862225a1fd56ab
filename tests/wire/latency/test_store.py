from collections.abc import Iterator

import pytest
from redis import Redis

from headrace_wire import redis_keys
from headrace_wire.functions import Call, Reply, library_source
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.store import (
    KEPT_SECONDS,
    SlotBook,
    filing_call,
    minutes_waiting,
    rolled_call,
    series_read,
    slot_of,
    totals_read,
    window,
)
from headrace_wire.latency.summary import SeriesKey, Summary

ANNA = SeriesKey("m", "anna", "k1", "w1")
BODO = SeriesKey("m", "bodo", "", "w2")


@pytest.fixture
def redis(redis_url: str) -> Iterator["Redis"]:
    client = Redis.from_url(redis_url)
    client.flushall()
    client.function_load(library_source()[1], replace=True)
    yield client
    client.close()


def run(client: "Redis", call: Call) -> Reply:
    name, keys, args = call
    return client.execute_command("FCALL", f"{name}_{library_source()[0]}", len(keys), *keys, *args)  # type: ignore[no-untyped-call]


def took(seconds: float, requests: int = 1) -> Summary:
    summary = Summary()
    summary.histogram(Measure.TTFT).add(seconds, requests)
    summary.count(Tally.REQUESTS, requests)
    return summary


@pytest.fixture
def slot(redis: "Redis") -> int:
    seconds: int = redis.time()[0]
    return slot_of(seconds)


def test_a_window_has_what_all_gateways_filed(redis: "Redis", slot: int) -> None:
    run(redis, filing_call([SlotBook.of("g1-1", slot, "m", {ANNA: took(0.1), BODO: took(0.3)})]))
    run(redis, filing_call([SlotBook.of("g2-1", slot, "m", {ANNA: took(0.2)}), SlotBook.of("g2-1", slot, "n", {})]))
    found = window(redis, deployment="m", seconds=10, now=slot + 3)
    assert found.tally(Tally.REQUESTS) == 3
    assert found.histograms[Measure.TTFT].sum_seconds == pytest.approx(0.6)
    assert found.histograms[Measure.TTFT].quantile(0.5) == pytest.approx(0.2, rel=0.01)
    assert not window(redis, deployment="n", seconds=10, now=slot + 3).tallies


def test_a_part_that_is_sent_twice_counts_once(redis: "Redis", slot: int) -> None:
    call = filing_call([SlotBook.of("g1-1", slot, "m", {ANNA: took(0.1)})])
    assert (run(redis, call), run(redis, call)) == (2, 0)
    assert window(redis, deployment="m", seconds=10, now=slot).tally(Tally.REQUESTS) == 1
    assert minutes_waiting(redis) == {slot - slot % 60: 1}


def test_two_parts_of_a_slot_are_added(redis: "Redis", slot: int) -> None:
    for part in ("g1-1", "g1-2"):
        run(redis, filing_call([SlotBook.of(part, slot, "m", {ANNA: took(0.1)})]))
    assert window(redis, deployment="m", seconds=10, now=slot).tally(Tally.REQUESTS) == 2


def test_what_is_older_than_the_window_is_left_out(redis: "Redis", slot: int) -> None:
    run(redis, filing_call([SlotBook.of("g1-1", slot - 70, "m", {ANNA: took(0.1)})]))
    assert not window(redis, deployment="m", seconds=60, now=slot)
    assert window(redis, deployment="m", seconds=70, now=slot)


def test_series_are_told_apart(redis: "Redis", slot: int) -> None:
    odd = BODO._replace(deployment="a:b/c")
    run(
        redis,
        filing_call(
            [SlotBook.of("g", slot, "m", {ANNA: took(0.1)}), SlotBook.of("g", slot, "a:b/c", {odd: took(0.2)})]
        ),
    )
    found = {part.key: Summary.unpack(part.packed) for part in series_read(redis, start=slot, end=slot + 1)}
    assert found == {ANNA: took(0.1), odd: took(0.2)}
    assert [part.key for part in series_read(redis, start=slot, end=slot + 1, deployment="a:b/c")] == [odd]
    assert not list(series_read(redis, start=slot + 1, end=slot + 100))
    assert len(list(totals_read(redis, start=slot, end=slot + 1))) == 2


def test_slots_go_after_their_time(redis: "Redis", slot: int) -> None:
    old = slot - KEPT_SECONDS
    run(
        redis,
        filing_call(
            [SlotBook.of("g1-1", old + 10, "m", {ANNA: took(0.1)}), SlotBook.of("g1-1", slot, "m", {ANNA: took(1)})]
        ),
    )
    for prefix in (redis_keys.latency_series_prefix(), redis_keys.latency_total_prefix()):
        assert redis.expiretime(f"{prefix}{slot}:m") == slot + KEPT_SECONDS
    run(redis, filing_call([SlotBook.of("g1-2", slot + 10, "m", {ANNA: took(1)})]))
    assert redis.zrange(redis_keys.latency_slots_key(), 0, -1) == [f"{at}:m".encode() for at in (slot, slot + 10)]


def test_a_minute_in_which_more_was_filed_has_to_be_rolled_up_again(redis: "Redis", slot: int) -> None:
    run(redis, filing_call([SlotBook.of("g1-1", slot, "m", {ANNA: took(0.1)})]))
    seen = minutes_waiting(redis)
    run(redis, filing_call([SlotBook.of("g2-1", slot, "m", {ANNA: took(0.1)})]))
    assert run(redis, rolled_call(seen)) == 0
    assert run(redis, rolled_call(minutes_waiting(redis))) == 1
    assert minutes_waiting(redis) == {}
