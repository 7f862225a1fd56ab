import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace_worker.control_link import ControlLink, Operation


class Engine:
    """Takes calls; answers them when it is let, as a step does."""

    def __init__(self) -> None:
        self.calls: list[list[Operation]] = []
        self.step = asyncio.Semaphore(0)
        self.failure: Exception | None = None

    async def carry(self, operations: Sequence[Operation]) -> list[Any]:
        self.calls.append(list(operations))
        await self.step.acquire()
        if self.failure is not None:
            raise self.failure
        return [f"answer {len(self.calls)}"] * len(operations)


async def test_one_call_at_a_time_and_the_rest_goes_together() -> None:
    engine = Engine()
    link = ControlLink(engine.carry)
    link.credit({"a": 1})
    link.credit({"b": 2})
    first = asyncio.create_task(link.ask("stats"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert engine.calls == [[["credit", {"a": 1, "b": 2}], ["stats"]]]
    link.credit({"a": 3})
    link.credit({"a": 4, "c": 5})
    link.limit(7)
    second, third = asyncio.create_task(link.ask("stats")), asyncio.create_task(link.ask("stats"))
    await asyncio.sleep(0)
    assert len(engine.calls) == 1, "the engine is in its step"
    engine.step.release()
    assert await first == "answer 1"
    engine.step.release()
    assert await second == await third == "answer 2"
    assert engine.calls[1:] == [[["limit", 7], ["credit", {"a": 4, "c": 5}], ["stats"]]]


async def test_a_failed_call_is_told_to_those_who_ask_and_the_next_is_tried() -> None:
    engine = Engine()
    link = ControlLink(engine.carry)
    engine.failure = RuntimeError("no")
    engine.step.release()
    with pytest.raises(RuntimeError):
        await link.ask("stats")
    engine.failure = None
    engine.step.release()
    assert await link.ask("stats") == "answer 2"


async def test_a_caller_that_leaves_takes_nobody_with_it() -> None:
    engine = Engine()
    link = ControlLink(engine.carry)
    leaving, staying = asyncio.create_task(link.ask("stats")), asyncio.create_task(link.ask("stats"))
    await asyncio.sleep(0)
    leaving.cancel()
    engine.step.release()
    assert await staying == "answer 1"
