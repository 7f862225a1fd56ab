"""The line in front of a full gateway: in order, told, and never stuck."""

import asyncio

import pytest

from apps.streams.limits import QueueNews, StreamLimit
from headrace_wire.errors import ServerOverloadedError


class Visitor:
    """One who wants a turn; keeps what it was told."""

    def __init__(self, limit: StreamLimit) -> None:
        self.limit = limit
        self.news: list[QueueNews] = []
        limit.enter()
        self.task = asyncio.create_task(limit.turn(self._hear))

    async def _hear(self, news: QueueNews) -> None:
        self.news.append(news)

    async def served(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.task), 30)

    def leave(self) -> None:
        self.limit.leave(had_turn=self.task.done() and not self.task.cancelled())


async def line_of(limit: StreamLimit, count: int) -> list[Visitor]:
    visitors = [Visitor(limit) for _ in range(count)]
    for _ in range(3):  # let each run to its wait
        await asyncio.sleep(0)
    return visitors


async def test_the_line_moves_in_order_and_is_told_its_place() -> None:
    limit = StreamLimit(soft=2, hard=10)
    visitors = await line_of(limit, 5)
    assert [v.task.done() for v in visitors] == [True, True, False, False, False]
    assert [v.news[0].position for v in visitors[2:]] == [1, 2, 3]
    visitors[0].leave()
    await visitors[2].served()
    assert not visitors[3].task.done()
    visitors[1].leave()
    await visitors[3].served()
    assert limit.generating == 2
    for visitor in (visitors[2], visitors[3]):
        visitor.leave()
    await visitors[4].served()
    visitors[4].leave()
    assert (limit.open, limit.generating) == (0, 0)


async def test_who_leaves_the_line_makes_room_and_keeps_no_turn() -> None:
    limit = StreamLimit(soft=1, hard=10)
    first, second, third = await line_of(limit, 3)
    second.task.cancel()
    await asyncio.gather(second.task, return_exceptions=True)
    second.leave()
    first.leave()
    await third.served()
    third.leave()
    assert (limit.open, limit.generating) == (0, 0)


async def test_a_turn_given_to_one_who_just_left_goes_to_the_next() -> None:
    limit = StreamLimit(soft=1, hard=10)
    first, second, third = await line_of(limit, 3)
    first.leave()
    second.task.cancel()  # in the same moment in which it was called
    await asyncio.gather(second.task, return_exceptions=True)
    if second.task.cancelled():
        limit.leave(had_turn=False)
    else:
        second.leave()
    await third.served()
    assert limit.generating == 1


async def test_the_line_counts_against_the_hard_limit() -> None:
    limit = StreamLimit(soft=1, hard=3)
    await line_of(limit, 3)
    with pytest.raises(ServerOverloadedError) as refused:
        limit.enter()
    assert refused.value.retry_after_seconds is not None
