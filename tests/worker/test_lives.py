"""Worker processes that die again and again: whoever starts next knows of it, and waits for a person."""

import itertools
import socket

import pytest

from headrace_wire import redis_keys
from headrace_wire.draining import resume_worker
from headrace_wire.fleet import WorkerState
from headrace_wire.functions import Reply
from headrace_wire.messages import StreamState
from headrace_worker.config import HealingLimits
from headrace_worker.lives import Lives
from tests.worker.conftest import RunWorker
from tests.worker.desk import Desk

KEY = redis_keys.worker_lives_key("sim", socket.gethostname())
WINDOW = 900.0
THREE = HealingLimits(quarantine_after=3, quarantine_seconds=WINDOW)
NUMBERS = itertools.count()


class Process:
    """A worker process, as far as others see it: it has a lease while it lives."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.lives = Lives(desk.redis, "sim", window_seconds=WINDOW)
        self.name = ""

    async def enlist(self) -> int:
        """Get a lease under a name of its own; return how many have died."""
        self.name = f"worker-{next(NUMBERS)}"
        await self._desk.queue.enlist(self.name, lease_seconds=60, channels=[])
        return await self.lives.note(self.name)

    async def die(self) -> None:
        await self._desk.redis.zadd(redis_keys.incarnations_key(), {self.name: 1})


async def died(desk: Desk, count: int) -> None:
    """So many processes start and die."""
    for _ in range(count):
        process = Process(desk)
        await process.enlist()
        await process.die()


async def test_those_that_died_are_counted_once_and_those_that_live_are_not(desk: Desk) -> None:
    living = Process(desk)
    assert await living.enlist() == 0
    await died(desk, 2)
    assert await Process(desk).enlist() == 2
    assert await Process(desk).enlist() == 2
    assert await living.enlist() == 2, "its own former name is nobody's death"


async def test_who_ends_in_order_has_not_died(desk: Desk) -> None:
    process = Process(desk)
    await process.enlist()
    await process.lives.end()
    await process.die()
    assert await Process(desk).enlist() == 0


async def test_old_deaths_are_forgotten_and_all_are_when_somebody_says_so(desk: Desk) -> None:
    await died(desk, 3)
    assert await Process(desk).enlist() == 3
    rows: Reply = await desk.redis.zrange(KEY, 0, -1, withscores=True)
    oldest = next(name for name, at in rows if at)
    await desk.redis.zadd(KEY, {oldest: 1})
    process = Process(desk)
    assert await process.enlist() == 2
    await process.lives.forget()
    assert await Process(desk).enlist() == 0


@pytest.mark.parametrize("count", [2, 3])
async def test_a_worker_begins_in_quarantine_where_so_many_have_died(
    desk: Desk, run_worker: RunWorker, count: int
) -> None:
    await died(desk, count)
    is_quarantined = count == THREE.quarantine_after
    state = WorkerState.BROKEN if is_quarantined else WorkerState.READY
    async with run_worker(state=state, healing=THREE):
        info = await desk.worker_in(state)
        assert info.engine_failures == count
        assert bool(info.quarantined_at) == is_quarantined
        if is_quarantined:
            assert "The last processes have died" in info.last_error
            await resume_worker(desk.redis, info.incarnation)
            await desk.worker_in(WorkerState.READY)
        assert (await desk.answer(await desk.admit())).end.state is StreamState.FINISHED
    rows: Reply = await desk.redis.zrange(KEY, 0, -1, withscores=True)
    assert len([name for name, at in rows if at]) == (0 if is_quarantined else count)
    assert not [name for name, at in rows if not at], "it has ended in order"
