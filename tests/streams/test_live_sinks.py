"""Sinks: readers that are given running tokens in the callback that brings them."""

import asyncio
import time

import pytest

from apps.streams.follower import Follower
from apps.streams.gateway import Gateway
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import Delta
from tests.support.snapshots import TENANT_A

from .appended_entries import EPOCH, append, end, opened, read_all


class Sink:
    """Takes tokens whose text is in lower case, and is full with the one that fills it."""

    def __init__(self, *, full_with: str = "") -> None:
        self.taken = ""
        self.is_full = False
        self._full_with = full_with

    def take(self, entry: Delta, now: float) -> bool:  # noqa: ARG002  a `LiveSink`'s
        if entry.text == "!":
            raise LookupError("fails on purpose")
        if not entry.text.islower():
            return False
        self.taken += entry.text
        self.is_full = entry.text == self._full_with
        return True


async def test_a_reader_that_waits_has_its_sink_given_what_it_takes(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription, sink = gateway.delivery.subscribe(stream_id), Sink()
    reading = asyncio.create_task(subscription.next(sink=sink))
    for seq, text in enumerate("abC", 1):
        await append(gateway, Delta(stream_id, EPOCH, seq, 1, text))
    assert [e.seq for e in await asyncio.wait_for(reading, 30)] == [3], "the first that the sink did not take"
    assert sink.taken == "ab"
    # Nobody waits now: nothing is taken for a reader that could not be told.
    await append(gateway, Delta(stream_id, EPOCH, 4, 1, "d"), end(stream_id, 5))
    assert await read_all(subscription) == ("d", [4])
    assert sink.taken == "ab"
    subscription.close()


async def test_a_sink_is_given_nothing_twice_and_nothing_behind_a_gap(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await gateway.functions.call_many([gateway.token_log.open_call(stream_id, readers=[])])
    subscription, sink = gateway.delivery.subscribe(stream_id), Sink()
    entries = [Delta(stream_id, EPOCH, seq, 1, text) for seq, text in enumerate("abcd", 1)]
    await append(gateway, *entries)
    reading = asyncio.create_task(subscription.next(sink=sink))
    await asyncio.sleep(0)  # it waits: nothing is delivered but what comes from here
    subscription.push_live(entries[0])
    subscription.push_live(entries[0])
    assert sink.taken == "a"
    await asyncio.sleep(0)  # it has looked at the second one, and waits again
    subscription.push_live(entries[3])
    assert await asyncio.wait_for(reading, 30) == entries[1:], "the rest, from the log"
    assert sink.taken == "a"
    subscription.close()


async def test_a_reader_is_woken_once_its_sink_is_full(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription, sink = gateway.delivery.subscribe(stream_id), Sink(full_with="b")
    follower = Follower(gateway, subscription, tenant_id=TENANT_A)
    reading = asyncio.create_task(follower.next(sink))
    for seq, text in enumerate("abc", 1):
        await append(gateway, Delta(stream_id, EPOCH, seq, 1, text))
    assert await asyncio.wait_for(reading, 30) == []
    assert (sink.taken, follower.position) == ("ab", 2)
    assert [e.seq for e in await asyncio.wait_for(follower.next(), 30)] == [3]
    subscription.close()


async def test_a_sink_that_fails_costs_its_reader_no_token_and_others_nothing(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    stream_id = await opened(gateway)
    mine, other = gateway.delivery.subscribe(stream_id), gateway.delivery.subscribe(stream_id)
    reading = asyncio.create_task(mine.next(sink=Sink()))
    await asyncio.sleep(0)
    await append(gateway, Delta(stream_id, EPOCH, 1, 1, "!"))
    assert [e.seq for e in await asyncio.wait_for(reading, 30)] == [1]
    assert [e.seq for e in await asyncio.wait_for(other.next(), 30)] == [1]
    assert "live_sink_failed" in caplog.text
    mine.close()
    other.close()


async def test_patience_begins_anew_with_what_a_sink_takes(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription, loop = gateway.delivery.subscribe(stream_id), asyncio.get_running_loop()
    reading = asyncio.create_task(subscription.next(0.3, Sink()))
    await asyncio.sleep(0)  # it waits, and its timer is set
    time.sleep(0.1)  # noqa: ASYNC251  # the loop stands still: that timer cannot fire first
    taken_at = loop.time()
    subscription.push_live(Delta(stream_id, EPOCH, 1, 1, "a"))
    assert await asyncio.wait_for(reading, 30) == []
    assert loop.time() - taken_at >= 0.3
    subscription.close()


async def test_an_early_timer_waits_for_the_newest_patience(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    waiting = asyncio.create_task(subscription.next(0.05))
    await asyncio.sleep(0)  # it waits, and its timer is set
    subscription.push(Delta(stream_id, EPOCH, 1, 1, "x"))
    assert [e.seq for e in await waiting] == [1]
    began = asyncio.get_running_loop().time()
    assert await asyncio.wait_for(subscription.next(0.2), 30) == []
    assert asyncio.get_running_loop().time() - began >= 0.2
    subscription.close()
