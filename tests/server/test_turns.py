"""Requests that come at the same moment start over several turns of the loop."""

import asyncio
from functools import partial

import pytest

from headrace.server.turns import Starter


async def test_what_comes_at_once_starts_in_order_and_by_turns() -> None:
    loop, turn = asyncio.get_running_loop(), 0
    starter = Starter(loop, per_turn=2)
    started: list[tuple[int, int]] = []
    for number in range(5):
        starter.start(lambda number=number: started.append((number, turn)))  # type: ignore[misc]
    assert started == [(0, 0), (1, 0)], "the first ones wait for nothing"
    while len(started) < 5:
        turn += 1
        await asyncio.sleep(0)
    assert [number for number, _ in started] == [0, 1, 2, 3, 4]
    turns = [at for _, at in started]
    assert turns[2] == turns[3] < turns[4]


async def test_a_later_turn_has_its_own_starts() -> None:
    starter = Starter(asyncio.get_running_loop(), per_turn=1)
    started: list[int] = []
    for number in range(3):
        starter.start(partial(started.append, number))
        assert started == list(range(number + 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_one_that_fails_leaves_the_others_their_turns() -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    starter = Starter(loop, per_turn=1)
    started: list[str] = []

    def fail() -> None:
        raise LookupError("on purpose")

    starter.start(partial(started.append, "a"))
    starter.start(fail)
    starter.start(partial(started.append, "b"))
    for _ in range(4):
        await asyncio.sleep(0)
    assert started == ["a", "b"]
    (context,) = told
    with pytest.raises(LookupError):
        raise context["exception"]  # type: ignore[misc]
