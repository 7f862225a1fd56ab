"""The publisher against a real Redis, over a wire that fails."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace_wire import redis_keys
from headrace_wire.functions import Functions, Reply
from headrace_wire.messages import (
    AnyLogEntry,
    Delta,
    Ended,
    FinishReason,
    Started,
    StreamState,
    Timings,
    Usage,
)
from headrace_wire.redis_client import connect
from headrace_wire.token_log import Append, TokenLog
from headrace_worker.outbox import Outbox
from headrace_worker.publisher import Publisher
from tests.worker.desk import Desk
from tests.worker.redis_proxy import RedisProxy

WORKER = "worker-test"
LIMIT_SECONDS = 60


class Bench:
    """A publisher behind a proxy, with an owned stream."""

    def __init__(self, desk: Desk, proxy: RedisProxy, publisher: Publisher) -> None:
        self.desk = desk
        self.proxy = proxy
        self.publisher = publisher
        self.dropped: asyncio.Queue[str] = asyncio.Queue()

    async def own(self) -> Outbox:
        """Admit and claim a stream."""
        await self.desk.admit()
        (claimed,) = await self.desk.queue.claim(WORKER, deployment="sim", want=1)
        outbox = Outbox(claimed.stream_id, epoch=claimed.epoch, incarnation=WORKER, log_ttl_seconds=600)
        self.publisher.open(outbox)
        self.put(outbox, Started(outbox.stream_id, outbox.epoch, 0, WORKER, 1))
        return outbox

    def put(self, outbox: Outbox, entry: AnyLogEntry) -> None:
        ids = [entry.seq] if isinstance(entry, Delta) else []
        ttl = 600 if isinstance(entry, Ended) else 0
        self.publisher.put(outbox, Append(entry, ids, max(0, entry.seq - 1), ttl))

    def token(self, outbox: Outbox, seq: int) -> None:
        self.put(outbox, Delta(outbox.stream_id, outbox.epoch, seq, 1, f"<{seq}>"))

    def end(self, outbox: Outbox, seq: int) -> None:
        self.put(outbox, ended(outbox, seq))

    async def logged(self, outbox: Outbox, seq: int) -> None:
        """Wait until the log has reached a position."""
        await self.desk.read_until(
            outbox.stream_id,
            lambda entry: entry.epoch == outbox.epoch and entry.seq >= seq,
            seconds=LIMIT_SECONDS,
        )


def ended(outbox: Outbox, seq: int) -> Ended:
    usage = Usage(1, seq - 1)
    return Ended(outbox.stream_id, outbox.epoch, seq, StreamState.FINISHED, FinishReason.STOP, None, usage, Timings())


@pytest.fixture
async def bench(desk: Desk, redis_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    await desk.queue.enlist(WORKER, lease_seconds=600, channels=[])
    async with RedisProxy.between(tmp_path, redis_url) as proxy:
        redis = connect(redis_url)
        functions = Functions(redis)
        dropped: asyncio.Queue[str] = asyncio.Queue()
        publisher = Publisher(
            proxy.url,
            functions,
            TokenLog(redis, functions),
            on_drop=lambda stream_id, _: dropped.put_nowait(stream_id),
        )
        bench = Bench(desk, proxy, publisher)
        bench.dropped = dropped
        task = asyncio.create_task(publisher.run())
        yield bench
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await redis.aclose()


async def check_exactly_once(bench: Bench, outbox: Outbox, tokens: int) -> None:
    answer = await bench.desk.answer(outbox.stream_id, seconds=LIMIT_SECONDS)
    answer.check_order()
    assert answer.text == "".join(f"<{i}>" for i in range(1, tokens + 1))
    assert await bench.desk.log.token_ids(outbox.stream_id) == list(range(1, tokens + 1))
    async with asyncio.timeout(LIMIT_SECONDS):
        await bench.publisher.wait_empty()
    record = await bench.desk.queue.record(outbox.stream_id)
    assert record is not None
    assert record.state is StreamState.FINISHED
    assert bench.dropped.empty()


async def test_one_turn_of_the_loop_is_one_append(bench: Bench) -> None:
    outboxes = [await bench.own() for _ in range(3)]
    for outbox in outboxes:
        await bench.logged(outbox, 0)
    before = await bench.desk.redis.xlen(redis_keys.delivery_key("gateway-test"))
    for outbox in outboxes:
        bench.token(outbox, 1)
    for outbox in outboxes:
        await bench.logged(outbox, 1)
    assert await bench.desk.redis.xlen(redis_keys.delivery_key("gateway-test")) == before + 1


async def test_answer_lost_makes_no_duplicate(bench: Bench) -> None:
    outbox = await bench.own()
    await bench.logged(outbox, 0)
    bench.proxy.lose_next_answer()
    bench.token(outbox, 1)
    await bench.proxy.swallowed.wait()
    bench.token(outbox, 2)
    bench.end(outbox, 3)
    await check_exactly_once(bench, outbox, 2)


async def test_answer_to_the_end_lost_settles_once(bench: Bench) -> None:
    outbox = await bench.own()
    bench.token(outbox, 1)
    await bench.logged(outbox, 1)
    bench.proxy.lose_next_answer()
    bench.end(outbox, 2)
    await bench.proxy.swallowed.wait()
    await check_exactly_once(bench, outbox, 1)


async def adopted(bench: Bench) -> tuple[Outbox, Ended]:
    """Return a stream whose end is in its log, and is neither settled nor published."""
    outbox = await bench.own()
    bench.token(outbox, 1)
    await bench.logged(outbox, 1)
    end = ended(outbox, 2)
    await bench.desk.log.append([Append(end, log_ttl_seconds=600)])
    return outbox, end


async def test_answer_to_the_settlement_lost_settles_once(bench: Bench) -> None:
    outbox, end = await adopted(bench)
    bench.proxy.lose_next_answer()
    bench.publisher.adopt(outbox, end)
    await bench.proxy.swallowed.wait()
    await check_exactly_once(bench, outbox, 1)
    assert await bench.desk.redis.xlen(redis_keys.usage_key()) == 1
    assert end in await bench.desk.delivered()


async def test_an_end_is_published_once_by_a_link_that_holds(bench: Bench) -> None:
    outbox, end = await adopted(bench)
    bench.publisher.adopt(outbox, end)
    await check_exactly_once(bench, outbox, 1)
    assert [entry for entry in await bench.desk.delivered() if isinstance(entry, Ended)] == [end]


async def test_a_settlement_that_fails_is_done_again_before_its_end_is_published(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, end = await adopted(bench)
    await bench.desk.redis.config_set("maxmemory", "1")
    try:
        bench.publisher.adopt(outbox, end)
        async with asyncio.timeout(LIMIT_SECONDS):
            while "waiting for redis" not in caplog.text:
                await bench.desk.redis.ping()
        assert end not in await bench.desk.delivered()
    finally:
        await bench.desk.redis.config_set("maxmemory", "0")
    await check_exactly_once(bench, outbox, 1)
    assert end in await bench.desk.delivered()
    assert "appends interrupted" not in caplog.text


async def test_tokens_of_an_outage_come_after_it(bench: Bench) -> None:
    outbox = await bench.own()
    bench.token(outbox, 1)
    await bench.logged(outbox, 1)
    bench.proxy.close()
    for seq in range(2, 600):
        bench.token(outbox, seq)
        await asyncio.sleep(0)
    bench.proxy.reopen()
    bench.end(outbox, 600)
    await check_exactly_once(bench, outbox, 599)


async def test_a_connection_cut_while_idle_is_replaced(bench: Bench) -> None:
    outbox = await bench.own()
    await bench.logged(outbox, 0)
    bench.proxy.cut()
    bench.token(outbox, 1)
    bench.end(outbox, 2)
    await check_exactly_once(bench, outbox, 1)


async def test_a_flushed_function_library_is_loaded_again(bench: Bench) -> None:
    outbox = await bench.own()
    await bench.logged(outbox, 0)
    await bench.desk.redis.function_flush()
    bench.token(outbox, 1)
    bench.end(outbox, 2)
    await check_exactly_once(bench, outbox, 1)


async def test_a_log_that_was_rolled_back_is_filled_again(bench: Bench) -> None:
    """A Redis that restarts from its append-only file may have lost a second."""
    outbox = await bench.own()
    bench.token(outbox, 1)
    await bench.logged(outbox, 1)
    log_key, ids_key = redis_keys.log_key(outbox.stream_id), redis_keys.token_ids_key(outbox.stream_id)
    saved: Reply = [await bench.desk.redis.dump(key) for key in (log_key, ids_key)]
    for seq in (2, 3, 4):
        bench.token(outbox, seq)
        await bench.logged(outbox, seq)
    for key, dump in zip((log_key, ids_key), saved, strict=True):
        await bench.desk.redis.restore(key, 600_000, dump, replace=True)
    bench.proxy.cut()
    bench.token(outbox, 5)
    bench.end(outbox, 6)
    await check_exactly_once(bench, outbox, 5)


async def test_an_end_that_was_rolled_back_is_written_and_settled_again(bench: Bench) -> None:
    outbox = await bench.own()
    bench.token(outbox, 1)
    await bench.logged(outbox, 1)
    keys = [redis_keys.log_key(outbox.stream_id), redis_keys.stream_key(outbox.stream_id)]
    saved: Reply = [await bench.desk.redis.dump(key) for key in keys]
    bench.end(outbox, 2)
    async with asyncio.timeout(LIMIT_SECONDS):
        await bench.publisher.wait_empty()
    for key, dump in zip(keys, saved, strict=True):
        await bench.desk.redis.restore(key, 600_000, dump, replace=True)
    bench.proxy.cut()
    await check_exactly_once(bench, outbox, 1)


async def test_a_successor_fences_us(bench: Bench) -> None:
    outbox, other = await bench.own(), await bench.own()
    await bench.logged(outbox, 0)
    fence = Started(outbox.stream_id, outbox.epoch + 1, 0, "worker-other", 2)
    await bench.desk.log.append([Append(fence)])
    bench.token(outbox, 1)
    bench.token(other, 1)
    bench.end(other, 2)
    await bench.desk.answer(other.stream_id, seconds=LIMIT_SECONDS)
    assert await asyncio.wait_for(bench.dropped.get(), LIMIT_SECONDS) == outbox.stream_id
    entries = await bench.desk.log.read(outbox.stream_id)
    assert entries is not None
    assert entries[-1] == fence
    record = await bench.desk.queue.record(outbox.stream_id)
    assert record is not None
    assert record.state is StreamState.RUNNING


async def test_an_expired_log_is_given_up_and_settled(bench: Bench) -> None:
    outbox = await bench.own()
    await bench.logged(outbox, 0)
    await bench.desk.log.discard(outbox.stream_id)
    bench.token(outbox, 1)
    async with asyncio.timeout(LIMIT_SECONDS):
        assert await bench.dropped.get() == outbox.stream_id
    async with asyncio.timeout(LIMIT_SECONDS):
        while (record := await bench.desk.queue.record(outbox.stream_id)) and not record.state.is_terminal:
            await bench.desk.redis.ping()
    assert await bench.desk.log.read(outbox.stream_id) is None
    assert record is not None
    assert record.state is StreamState.FAILED
    assert bench.publisher.owned() == []


async def test_a_lost_stream_is_not_written_to(bench: Bench) -> None:
    outbox = await bench.own()
    await bench.logged(outbox, 0)
    bench.publisher.lose([(outbox.stream_id, outbox.epoch)])
    bench.token(outbox, 1)
    other = await bench.own()
    bench.end(other, 1)
    await bench.desk.answer(other.stream_id, seconds=LIMIT_SECONDS)
    entries = await bench.desk.log.read(outbox.stream_id)
    assert entries is not None
    assert [type(entry).__name__ for entry in entries] == ["Opened", "Started"]


async def test_a_full_redis_delays_and_loses_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    outbox = await bench.own()
    await bench.logged(outbox, 0)
    await bench.desk.redis.config_set("maxmemory", "1")
    try:
        bench.token(outbox, 1)
        async with asyncio.timeout(LIMIT_SECONDS):
            while "appends interrupted" not in caplog.text:
                await bench.desk.redis.ping()
        entries = await bench.desk.log.read(outbox.stream_id)
        assert entries is not None
        assert entries[-1].seq == 0
    finally:
        await bench.desk.redis.config_set("maxmemory", "0")
    bench.end(outbox, 2)
    await check_exactly_once(bench, outbox, 1)


async def test_an_end_that_cannot_be_settled_keeps_no_other_from_its_own(bench: Bench) -> None:
    poisonous, other = await bench.own(), await bench.own()
    for outbox in (poisonous, other):
        await bench.logged(outbox, 0)
    await bench.desk.redis.hset(redis_keys.stream_key(poisonous.stream_id), "reserved", b"\xc1")
    for outbox in (poisonous, other):
        bench.end(outbox, 1)
    async with asyncio.timeout(LIMIT_SECONDS):
        await bench.publisher.wait_empty()
    ends = [entry.stream_id for entry in await bench.desk.delivered() if isinstance(entry, Ended)]
    assert sorted(ends) == sorted([poisonous.stream_id, other.stream_id])
    assert await bench.desk.redis.xlen(redis_keys.settlements_set_aside_key()) == 1
    assert await bench.desk.redis.xlen(redis_keys.usage_key()) == 1
