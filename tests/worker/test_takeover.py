"""Fence first, then read: what a new owner finds when the old one is not quite dead."""

from collections.abc import Sequence

import pytest

from headrace_wire.messages import (
    AnyLogEntry,
    Delta,
    Ended,
    FinishReason,
    Opened,
    Started,
    StreamState,
    Timings,
    Usage,
)
from headrace_wire.token_log import Append, AppendResult, TokenLog
from headrace_worker.takeover import FencedError, History, LogBrokenError, LogGoneError, take_over
from tests.worker.desk import Desk

OLD, NEW = 100, 200


class LateOwner(TokenLog):
    """A log whose old owner writes at the worst moment: between our look at the tail and our fence."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.redis, desk.functions)
        self.last_words: list[list[Append]] = []

    async def tail(self, stream_id: str) -> AnyLogEntry | None:
        tail = await super().tail(stream_id)
        if self.last_words:
            await super().append(self.last_words.pop(0))
        return tail


class Stream:
    """A stream whose old owner has written three tokens."""

    def __init__(self, desk: Desk, stream_id: str) -> None:
        self.desk = desk
        self.id = stream_id
        self.log = LateOwner(desk)

    def delta(self, seq: int, *, epoch: int = OLD) -> Append:
        return Append(Delta(self.id, epoch, seq, 1, f"<{seq}>"), [seq * 10], seq - 1)

    def end(self, seq: int, *, epoch: int = OLD) -> Append:
        entry = Ended(self.id, epoch, seq, StreamState.FINISHED, FinishReason.STOP, None, Usage(1, seq - 1), Timings())
        return Append(entry, log_ttl_seconds=600)

    async def write(self, *appends: Append) -> Sequence[AppendResult]:
        return await self.desk.log.append(appends)

    async def take_over(self, *, epoch: int = NEW) -> History | Ended:
        return await take_over(self.log, Started(self.id, epoch, 0, "worker-new", 2, 3.0))

    async def entry_ids(self) -> list[tuple[int, int]]:
        entries = await self.desk.log.read(self.id)
        return [(entry.epoch, entry.seq) for entry in entries or []]


@pytest.fixture
async def stream(desk: Desk) -> Stream:
    stream = Stream(desk, await desk.admit())
    await stream.write(Append(Started(stream.id, OLD, 0, "worker-old", 1, 0.25)), *map(stream.delta, (1, 2, 3)))
    return stream


async def test_fence_then_history(stream: Stream) -> None:
    history = await stream.take_over()
    assert isinstance(history, History)
    assert (history.text, history.token_ids) == ("<1><2><3>", [10, 20, 30])
    assert (history.queue_time, history.owners_since) == (0.25, [OLD, NEW])
    assert await stream.entry_ids() == [(1, 0), (OLD, 0), (OLD, 1), (OLD, 2), (OLD, 3), (NEW, 3)]
    assert set(await stream.write(stream.delta(4))) == {AppendResult.REFUSED}, "the old owner is fenced"
    assert set(await stream.write(stream.delta(4, epoch=NEW))) == {AppendResult.ACCEPTED}


async def test_history_can_be_written_again_as_it_was(stream: Stream) -> None:
    """A Redis that restarted has lost its last second: the new owner knows what stood there, also what others wrote."""
    history = await stream.take_over()
    assert isinstance(history, History)
    before = await stream.entry_ids()
    await stream.desk.log.discard(stream.id)
    await stream.desk.functions.call_many([stream.desk.log.open_call(stream.id, readers=[])])
    opened, *rest = history.appends
    assert isinstance(opened.entry, Opened)
    assert set(await stream.write(*rest)) == {AppendResult.ACCEPTED}
    assert await stream.entry_ids() == before
    assert await stream.desk.log.token_ids(stream.id) == [10, 20, 30]


async def test_a_token_that_comes_before_the_fence_counts(stream: Stream) -> None:
    stream.log.last_words = [[stream.delta(4), stream.delta(5)]]
    history = await stream.take_over()
    assert isinstance(history, History)
    assert history.token_ids == [10, 20, 30, 40, 50]
    assert (await stream.entry_ids())[-2:] == [(NEW, 3), (NEW, 5)]


async def test_an_end_that_comes_before_the_fence_stands(stream: Stream) -> None:
    stream.log.last_words = [[stream.delta(4), stream.end(5)]]
    ended = await stream.take_over()
    assert isinstance(ended, Ended)
    assert ended.seq == 5


async def test_an_end_is_left_as_it_is(stream: Stream) -> None:
    await stream.write(stream.end(4))
    before = await stream.entry_ids()
    assert isinstance(await stream.take_over(), Ended)
    assert await stream.entry_ids() == before


async def test_a_fence_whose_answer_got_lost_is_ours(stream: Stream) -> None:
    await stream.take_over()
    assert isinstance(await stream.take_over(), History)
    assert (await stream.entry_ids()).count((NEW, 3)) == 1


async def test_somebody_newer(stream: Stream) -> None:
    await stream.take_over(epoch=NEW + 1)
    with pytest.raises(FencedError):
        await stream.take_over()
    stream.log.last_words = [[Append(Started(stream.id, NEW + 5, 3, "worker-newer", 3))]]
    with pytest.raises(FencedError):
        await stream.take_over(epoch=NEW + 2)


async def test_no_log(stream: Stream) -> None:
    await stream.desk.log.discard(stream.id)
    with pytest.raises(LogGoneError):
        await stream.take_over()


async def test_ids_are_missing(stream: Stream) -> None:
    await stream.write(Append(Delta(stream.id, OLD, 4, 1, "<4>")))
    with pytest.raises(LogBrokenError) as error:
        await stream.take_over()
    assert error.value.seq == 4
