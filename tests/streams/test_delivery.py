"""A subscription gives each token position exactly once, whatever delivery does."""

import asyncio
import itertools
from collections import Counter

import pytest

from apps.streams.delivery import ENTRIES_AT_ONCE
from apps.streams.follower import Follower
from apps.streams.gateway import Gateway
from apps.streams.subscription import QUEUE_LIMIT, Subscription
from headrace_wire import redis_keys
from headrace_wire.errors import DrainingError, LogRolledBackError, StreamGoneError
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import AnyLogEntry, Delta, Ended, Started
from headrace_wire.token_log import Append
from tests.support.snapshots import TENANT_A

from .appended_entries import EPOCH, append, cut_delivery, end, opened, read_all


async def test_live_entries_arrive_in_order(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    reading = asyncio.create_task(read_all(subscription))
    await append(gateway, Started(stream_id, EPOCH, 0, "w", 1))
    for seq in range(1, 20):
        await append(gateway, Delta(stream_id, EPOCH, seq, 1, str(seq)))
    await append(gateway, end(stream_id, 20))
    assert await reading == ("".join(map(str, range(1, 20))), list(range(1, 20)))


async def test_a_large_step_leaves_turns_to_others(gateway: Gateway) -> None:
    """What else the gateway has to do comes between its readers, not behind all of them."""
    stream_ids = [await opened(gateway) for _ in range(4 * ENTRIES_AT_ONCE)]
    subscriptions = [gateway.delivery.subscribe(stream_id) for stream_id in stream_ids]
    loop, turn = asyncio.get_running_loop(), itertools.count()

    async def woken_in(subscription: Subscription) -> int:
        assert [entry.seq for entry in await asyncio.wait_for(subscription.next(), 30)] == [1]
        return seen[-1]

    def look() -> None:
        seen.append(next(turn))
        if not all(reading.done() for reading in readings):
            loop.call_soon(look)

    seen: list[int] = []
    readings = [asyncio.create_task(woken_in(subscription)) for subscription in subscriptions]
    look()
    await append(gateway, *[Delta(stream_id, EPOCH, 1, 1, "x") for stream_id in stream_ids])
    turns = Counter(await asyncio.gather(*readings))
    assert sum(turns.values()) == len(stream_ids)
    assert max(turns.values()) <= ENTRIES_AT_ONCE
    for subscription in subscriptions:
        subscription.close()


async def test_what_was_never_delivered_is_found_after_a_silence(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await gateway.functions.call_many([gateway.token_log.open_call(stream_id, readers=[])])
    subscription = gateway.delivery.subscribe(stream_id)
    follower = Follower(gateway, subscription, tenant_id=TENANT_A, heartbeat_seconds=0.1)
    assert await follower.next() == []
    entries: list[AnyLogEntry] = [Delta(stream_id, EPOCH, 1, 1, "x"), end(stream_id, 2)]
    await append(gateway, *entries)
    found: list[AnyLogEntry] = []
    async with asyncio.timeout(30):
        while not found:
            found = await follower.next()
    assert found == entries
    subscription.close()


async def test_a_redis_that_forgot_its_readers_is_told_again(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    await append(gateway, Delta(stream_id, EPOCH, 1, 1, "x"))
    assert len(await asyncio.wait_for(subscription.next(), 30)) == 1
    readers = redis_keys.readers_key(stream_id)
    await gateway.redis.delete(readers)
    await cut_delivery(gateway)
    async with asyncio.timeout(30):
        while not await gateway.redis.exists(readers):  # noqa: ASYNC110  nothing announces it
            await asyncio.sleep(0.02)
    await append(gateway, Delta(stream_id, EPOCH, 2, 1, "y"))
    assert [entry.seq for entry in await asyncio.wait_for(subscription.next(), 30)] == [2]
    subscription.close()


@pytest.mark.parametrize("read_log", [False, True])
async def test_tokens_that_are_logged_anew_are_given_once(gateway: Gateway, read_log: bool) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id, after=3, read_log=read_log)
    again = [Delta(stream_id, EPOCH, seq, 1, str(seq)) for seq in range(2, 6)]
    await append(gateway, Delta(stream_id, EPOCH, 1, 1, "1"), *again, end(stream_id, 6))
    assert await read_all(subscription) == ("45", [4, 5])
    subscription.close()


@pytest.mark.parametrize("read_log", [False, True])
async def test_a_position_inside_of_an_entry_is_an_explicit_error(gateway: Gateway, read_log: bool) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id, after=3, read_log=read_log)
    await append(gateway, Delta(stream_id, EPOCH, 2, 2, "12"), Delta(stream_id, EPOCH, 5, 3, "345"), end(stream_id, 6))
    with pytest.raises(LogRolledBackError):
        await read_all(subscription)
    subscription.close()


@pytest.mark.parametrize("read_log", [False, True])
@pytest.mark.parametrize("is_exact", [False, True])
async def test_what_another_owner_writes_anew_is_only_trusted_where_it_is_exact(
    gateway: Gateway, read_log: bool, is_exact: bool
) -> None:
    """Redis has forgotten positions 3 and 4, which the reader has; a successor of their owner writes them again."""
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    first, second = Started(stream_id, EPOCH, 0, "w", 1), Started(stream_id, EPOCH + 1, 2, "v", 2, is_exact=is_exact)
    old = [Delta(stream_id, EPOCH, seq, 1, str(seq)) for seq in range(1, 5)]
    subscription.push(first)
    for entry in old:
        subscription.push(entry)
    assert [entry.seq for entry in await subscription.next()] == [0, 1, 2, 3, 4]
    anew = [Delta(stream_id, EPOCH + 1, seq, 1, str(seq)) for seq in range(3, 6)]
    await append(gateway, first, *old[:2], second, *anew, end(stream_id, 6, EPOCH + 1))
    if read_log:
        subscription.distrust()
    if is_exact:
        assert await read_all(subscription) == ("5", [5])
    else:
        with pytest.raises(LogRolledBackError):
            await read_all(subscription)
    subscription.close()


async def test_what_the_same_owner_writes_again_is_what_it_was(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id, after=4, read_log=True, had_under=EPOCH)
    start = Started(stream_id, EPOCH, 0, "w", 1, is_exact=False)
    await append(gateway, start, *[Delta(stream_id, EPOCH, seq, 1, str(seq)) for seq in range(1, 6)])
    await append(gateway, end(stream_id, 6))
    assert await read_all(subscription) == ("5", [5])
    subscription.close()


@pytest.mark.parametrize("after", [0, 1, 3, 9])
async def test_resume_continues_after_the_cursor(gateway: Gateway, after: int) -> None:
    stream_id = await opened(gateway)
    await append(gateway, *[Delta(stream_id, EPOCH, seq, 1, str(seq)) for seq in range(1, 10)], end(stream_id, 10))
    subscription = gateway.delivery.subscribe(stream_id, after=after, read_log=True)
    _, seqs = await read_all(subscription)
    assert seqs == list(range(after + 1, 10))


async def test_resume_races_live_appends_without_loss_or_double(gateway: Gateway) -> None:
    stream_id = await opened(gateway)

    async def write() -> None:
        for seq in range(1, 300):
            await append(gateway, Delta(stream_id, EPOCH, seq, 1, f"{seq} "))
        await append(gateway, end(stream_id, 300))

    async def join(delay_reads: int) -> list[int]:
        for _ in range(delay_reads):
            await gateway.redis.ping()
        assert await gateway.token_log.attach(stream_id, gateway.incarnation)
        subscription = gateway.delivery.subscribe(stream_id, read_log=True)
        _, seqs = await read_all(subscription)
        subscription.close()
        return seqs

    _, *joined = await asyncio.gather(write(), *[join(n * 20) for n in range(8)])
    assert all(seqs == list(range(1, 300)) for seqs in joined)


async def test_a_gap_is_read_from_the_log(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    await gateway.token_log.detach(stream_id, gateway.incarnation)  # this test is the delivery
    subscription = gateway.delivery.subscribe(stream_id)
    deltas = [Delta(stream_id, EPOCH, seq, 1, str(seq)) for seq in range(1, 5)]
    await gateway.token_log.append([Append(d) for d in deltas])
    subscription.push(deltas[0])
    subscription.push(deltas[3])
    seen = [entry.seq for entry in [*await subscription.next(), *await subscription.next()]]
    assert seen == [1, 2, 3, 4]


async def test_a_lost_end_is_found_when_delivery_is_not_trusted(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    await gateway.token_log.append([Append(Delta(stream_id, EPOCH, 1, 1, "x")), Append(end(stream_id, 2))])
    # The terminal entry is never published, as if its delivery had been trimmed.
    reading = asyncio.create_task(read_all(subscription))
    gateway.delivery.distrust_all()
    assert await reading == ("x", [1])


async def test_a_trimmed_delivery_stream_is_noticed(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    await append(gateway, Delta(stream_id, EPOCH, 1, 1, "a"))
    assert [e.seq for e in await asyncio.wait_for(subscription.next(), 30)] == [1]
    # Skip ids, as trimming past the reader would: nothing about stream `stream_id` is in what is left.
    key = redis_keys.delivery_key(gateway.incarnation)
    await gateway.token_log.append([Append(end(stream_id, 2))])
    await gateway.redis.xadd(key, {"d": b""}, id="1-900")
    (entry,) = await asyncio.wait_for(subscription.next(), 30)
    assert isinstance(entry, Ended)


async def test_a_full_queue_drops_to_the_log(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    count = QUEUE_LIMIT * 2
    for start in range(1, count + 1, 256):
        await append(gateway, *[Delta(stream_id, EPOCH, s, 1, "x") for s in range(start, min(start + 256, count + 1))])
    await append(gateway, end(stream_id, count + 1))
    _, seqs = await read_all(subscription)
    assert seqs == list(range(1, count + 1))


async def test_a_new_owner_is_announced_once_and_repeats_nothing(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    await append(gateway, Started(stream_id, 10, 0, "w1", 1), Delta(stream_id, 10, 2, 2, "ab"))
    await append(gateway, Started(stream_id, 20, 2, "w2", 2), Delta(stream_id, 20, 3, 1, "c"), end(stream_id, 4, 20))
    entries: list[AnyLogEntry] = []
    while not entries or not isinstance(entries[-1], Ended):
        entries += await asyncio.wait_for(subscription.next(), 30)
    assert [(type(e).__name__, e.seq) for e in entries] == [
        ("Started", 0), ("Delta", 2), ("Started", 2), ("Delta", 3), ("Ended", 4),
    ]  # fmt: skip


async def test_a_cut_connection_loses_nothing(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    reading = asyncio.create_task(read_all(subscription))
    await append(gateway, Delta(stream_id, EPOCH, 1, 1, "a"))
    await cut_delivery(gateway)
    await append(gateway, Delta(stream_id, EPOCH, 2, 1, "b"), end(stream_id, 3))
    assert await asyncio.wait_for(reading, 30) == ("ab", [1, 2])


async def test_an_expired_log_is_gone_never_an_end(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    await gateway.redis.delete(redis_keys.log_key(stream_id))
    subscription = gateway.delivery.subscribe(stream_id, read_log=True)
    with pytest.raises(StreamGoneError):
        await subscription.next()


async def test_a_closed_subscription_leaves_nothing_behind(gateway: Gateway) -> None:
    first, second = gateway.delivery.subscribe("strm-x"), gateway.delivery.subscribe("strm-x")
    first.close()
    first.close()
    assert gateway.delivery.stream_ids() == ["strm-x"]
    second.close()
    assert gateway.delivery.stream_ids() == []
    assert len(gateway.delivery) == 0


async def test_an_interrupted_reader_gets_what_is_there_first(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    subscription.push(Delta(stream_id, EPOCH, 1, 1, "x"))
    gateway.delivery.interrupt_all(DrainingError("ends"))
    assert [e.seq for e in await subscription.next()] == [1]
    with pytest.raises(DrainingError):
        await subscription.next()


async def test_a_reader_with_patience_gets_nothing_when_it_has_run_out(gateway: Gateway) -> None:
    stream_id = await opened(gateway)
    subscription = gateway.delivery.subscribe(stream_id)
    assert await subscription.next(0.01) == []
    waiting = asyncio.create_task(subscription.next(60.0))
    await append(gateway, Delta(stream_id, EPOCH, 1, 1, "x"))
    assert [e.seq for e in await asyncio.wait_for(waiting, 30)] == [1]
    # The timer of the call before is still set, for later: the shorter patience counts.
    assert await asyncio.wait_for(subscription.next(0.01), 30) == []
    # It has gone off by now: the next call sets it again.
    assert await asyncio.wait_for(subscription.next(0.01), 30) == []
    subscription.close()
