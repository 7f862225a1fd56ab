"""A link answers in order, says once that it ended, and never becomes another connection."""

import asyncio

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from headrace_wire.redis_link import RedisLink


async def test_replies_come_in_the_order_of_their_commands(redis_url: str) -> None:
    link = await RedisLink.open(redis_url, lost=lambda: None)
    slow = asyncio.create_task(link.ask([("BLPOP", "link:none", "0.05"), ("ECHO", "first")]))
    quick = asyncio.create_task(link.ask([("ECHO", "second")]))
    assert await slow == [None, b"first"]
    assert await quick == [b"second"]
    link.close()


async def test_calls_that_come_while_one_is_outstanding_go_together(redis_url: str) -> None:
    link = await RedisLink.open(redis_url, lost=lambda: None)
    async with Redis.from_url(redis_url) as redis:

        async def reads() -> int:
            return int((await redis.info("stats"))["total_reads_processed"])

        await reads()  # by now it is connected
        before = await reads()
        asked = [link.ask([("ECHO", f"{n}"), ("ECHO", f"{n}!")], together=True) for n in range(9)]
        replies = await asyncio.gather(*asked)
        assert replies == [[b"%d" % n, b"%d!" % n] for n in range(9)]
        assert await reads() - before <= 3 + 1, "the first, and twice four; and the question itself"
    link.close()


async def test_what_is_sent_at_once_does_not_overtake_what_waits(redis_url: str) -> None:
    link = await RedisLink.open(redis_url, lost=lambda: None)
    ways = [True, True, False, True, False]
    asked = [link.ask([("ECHO", f"{n}")], together=together) for n, together in enumerate(ways)]
    assert await asyncio.gather(*asked) == [[b"%d" % n] for n in range(len(ways))]
    link.close()


async def test_an_error_among_the_answers_is_raised(redis_url: str) -> None:
    link = await RedisLink.open(redis_url, lost=lambda: None)
    with pytest.raises(ResponseError):
        await link.ask([("PING",), ("NO-SUCH-COMMAND",)])
    assert await link.ask([("ECHO", "still here")]) == [b"still here"]
    link.close()


async def test_the_end_is_told_to_everybody_who_waits(redis_url: str) -> None:
    ended = asyncio.Event()
    link = await RedisLink.open(redis_url, lost=ended.set)
    (number,) = await link.ask([("CLIENT", "ID")])
    waiting = asyncio.create_task(link.ask([("BLPOP", "link:none", 0)]))
    async with Redis.from_url(redis_url) as redis:
        while not await redis.client_kill_filter(_id=number):
            pass
    with pytest.raises(RedisConnectionError):
        await waiting
    await asyncio.wait_for(ended.wait(), 30)
    with pytest.raises(RedisConnectionError):
        await link.ask([("PING",)])


async def test_hanging_up_tells_nobody(redis_url: str) -> None:
    told: list[str] = []
    link = await RedisLink.open(redis_url, lost=lambda: told.append("lost"))
    link.send([("BLPOP", "link:none", 0)], lambda _: told.append("answered"))
    link.close()
    await asyncio.sleep(0)
    assert told == []


async def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RedisError):
        await RedisLink.open("unix:///nowhere/redis.sock", lost=lambda: None)
