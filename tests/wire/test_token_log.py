"""The token log's promises, on a real Redis: one writer, no revival, delivery of accepted entries only."""

from headrace_wire import codec, redis_keys
from headrace_wire.functions import Reply
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import AnyLogEntry, Delta, Ended, FinishReason, Started, StreamState, Timings, Usage
from headrace_wire.token_log import Append, AppendResult

from .conftest import GATEWAY, Wire


def ended(stream_id: str, epoch: int, seq: int) -> Ended:
    return Ended(stream_id, epoch, seq, StreamState.FINISHED, FinishReason.STOP, None, Usage(1, seq - 1), Timings())


async def opened(wire: Wire) -> str:
    stream_id = new_stream_id()
    await wire.functions.call_many([wire.log.open_call(stream_id, readers=[GATEWAY])])
    return stream_id


async def test_entries_are_logged_delivered_and_read_back(wire: Wire) -> None:
    a, b = await opened(wire), await opened(wire)
    entries: list[AnyLogEntry] = [
        Started(a, 10, 0, "w", 1, 0.5),
        Delta(a, 10, 1, 1, "Hé"),
        Delta(b, 11, 2, 2, "…"),
        Delta(a, 10, 3, 2, "x"),
    ]
    results = await wire.log.append([Append(e) for e in entries])
    assert results == [AppendResult.ACCEPTED] * 4
    log = await wire.log.read(a)
    assert log is not None
    assert log[1:] == [entries[0], entries[1], entries[3]]
    assert await wire.log.read(a, after_seq=1) == [entries[3]]
    (payload,) = await wire.delivered()
    assert codec.decode_log_entries(payload) == entries


async def test_delivery_ids_have_no_gaps(wire: Wire) -> None:
    a = await opened(wire)
    for seq in range(1, 4):
        await wire.log.append([Append(Delta(a, 10, seq, 1, "x"))])
    rows: Reply = await wire.redis.xrange(redis_keys.delivery_key(GATEWAY))
    assert [row_id for row_id, _ in rows] == [b"1-0", b"1-1", b"1-2", b"1-3"]


async def test_a_fenced_writer_is_refused_and_its_text_is_not_delivered(wire: Wire) -> None:
    a = await opened(wire)
    await wire.log.append([Append(Delta(a, 10, 1, 1, "old"))])
    await wire.log.append([Append(Started(a, 20, 1, "w2", 2))])
    assert await wire.log.append([Append(Delta(a, 10, 2, 1, "zombie"))]) == [AppendResult.REFUSED]
    tail = await wire.log.tail(a)
    assert tail is not None
    assert (tail.epoch, tail.seq) == (20, 1)
    assert b"zombie" not in b"".join(await wire.delivered())


async def test_a_repeated_append_is_refused_so_that_it_cannot_double(wire: Wire) -> None:
    a = await opened(wire)
    delta = Append(Delta(a, 10, 1, 1, "once"), token_ids=[7], token_ids_at=0)
    assert await wire.log.append([delta]) == [AppendResult.ACCEPTED]
    assert await wire.log.append([delta]) == [AppendResult.REFUSED]
    assert len(await wire.log.read(a, after_seq=0) or []) == 1
    assert await wire.log.token_ids(a) == [7]


async def test_a_late_write_does_not_revive_an_expired_log(wire: Wire) -> None:
    a = await opened(wire)
    await wire.redis.delete(redis_keys.log_key(a))
    late = Append(Delta(a, 10, 1, 1, "late"), token_ids=[1], token_ids_at=0)
    assert await wire.log.append([late]) == [AppendResult.GONE]
    assert await wire.log.read(a) is None
    assert await wire.log.token_ids(a) == []
    assert await wire.log.attach(a, GATEWAY) is False


async def test_terminal_entry_is_delivered_only_by_publish_and_starts_retention(wire: Wire) -> None:
    a = await opened(wire)
    end = ended(a, 10, 2)
    appends = [Append(Delta(a, 10, 1, 1, "x"), token_ids=[300_000], token_ids_at=0), Append(end, log_ttl_seconds=50)]
    assert await wire.log.append(appends) == [AppendResult.ACCEPTED] * 2
    assert [codec.decode_log_entries(p) for p in await wire.delivered()] == [[appends[0].entry]]
    await wire.log.publish([end])
    assert codec.decode_log_entries((await wire.delivered())[1]) == [end]
    for key in (redis_keys.log_key(a), redis_keys.token_ids_key(a), redis_keys.readers_key(a)):
        assert 40 <= await wire.redis.ttl(key) <= 50
    assert await wire.log.token_ids(a) == [300_000]


async def test_attached_gateways_get_what_follows_and_dead_ones_cost_nothing(wire: Wire) -> None:
    a = await opened(wire)
    await wire.log.append([Append(Delta(a, 10, 1, 1, "x"))])
    await wire.queue.enlist("gateway-b", lease_seconds=60, channels=[redis_keys.delivery_key("gateway-b")])
    assert await wire.log.attach(a, "gateway-b")
    assert await wire.log.attach(a, "gateway-dead")
    await wire.log.append([Append(Delta(a, 10, 2, 1, "y"))])
    (payload,) = await wire.delivered("gateway-b")
    assert codec.decode_log_entries(payload) == [Delta(a, 10, 2, 1, "y")]
    assert not await wire.redis.exists(redis_keys.delivery_key("gateway-dead"))
    await wire.log.detach(a, "gateway-b")
    await wire.log.append([Append(Delta(a, 10, 3, 1, "z"))])
    assert len(await wire.delivered("gateway-b")) == 1


async def test_streams_with_different_readers_in_one_step(wire: Wire) -> None:
    """Each gateway gets what it reads, in the order of the log, however often it says that it does."""
    a, b, nobodys = [await opened(wire) for _ in range(3)]
    await wire.queue.enlist("gateway-b", lease_seconds=60, channels=[redis_keys.delivery_key("gateway-b")])
    for _ in range(2):
        assert await wire.log.attach(b, "gateway-b")
    assert await wire.log.detach(nobodys, GATEWAY) == 0
    entries = [Delta(stream_id, 10, seq, 1, "x") for seq in (1, 2) for stream_id in (a, nobodys, b)]
    await wire.log.append([Append(entry) for entry in entries])
    for gateway, read in ((GATEWAY, (a, b)), ("gateway-b", (b,))):
        delivered = [entry for payload in await wire.delivered(gateway) for entry in codec.decode_log_entries(payload)]
        for stream_id in read:
            own = [entry for entry in entries if entry.stream_id == stream_id]
            assert [entry for entry in delivered if entry.stream_id == stream_id] == own
        assert len(delivered) == 2 * len(read)
    assert await wire.log.detach(b, "gateway-dead") == 2
    assert await wire.log.detach(b, GATEWAY) == 1
    assert await wire.log.detach(b, "gateway-b") == 0
    assert not await wire.redis.exists(redis_keys.readers_key(b))


async def test_a_batch_over_the_255_limit_of_small_headers_decodes(wire: Wire) -> None:
    a = await opened(wire)
    entries = [Delta(a, 10, seq, 1, "x" * 40) for seq in range(1, 70_001)]
    for start in range(0, len(entries), 1000):
        await wire.log.append([Append(e) for e in entries[start : start + 1000]])
    decoded = [e for p in await wire.delivered() for e in codec.decode_log_entries(p)]
    assert decoded == entries
