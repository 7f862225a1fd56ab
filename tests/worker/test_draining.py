"""A worker that is to end, or to drain, resume, migrate by order: nothing is lost, doubled, or served twice."""

import pytest

from headrace_wire import redis_keys
from headrace_wire.draining import NotThereError, drain_worker, migrate_stream, resume_worker
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.messages import Started, StreamState
from tests.support.snapshots import simulated, snapshot
from tests.worker.conftest import RunWorker
from tests.worker.desk import Desk

SLOW = {"ttft_ms": 5, "tpot_ms": 20}
LONG = 3600.0
STREAMS = 20


async def test_drain_lets_streams_finish_and_takes_no_new_ones(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW), drain_seconds=60) as worker:
        running = await desk.admit(max_tokens=150)
        await desk.first_token(running)
        worker.stop()
        await desk.worker_in(WorkerState.DRAINING)
        waiting = await desk.admit()
        answer = await desk.answer(running)
    assert answer.end.state is StreamState.FINISHED
    assert answer.end.usage.completion_tokens == 150
    record = await desk.queue.record(waiting)
    assert record is not None
    assert record.state is StreamState.QUEUED
    assert await desk.workers() == []


async def test_what_a_drain_cuts_is_continued_by_the_next_worker(desk: Desk, run_worker: RunWorker) -> None:
    """Also when it was admitted so long ago that its queue deadline has passed: it has met that one."""
    async with run_worker(simulated("sim", engine_args=SLOW), drain_seconds=0.1):
        stream_id = await desk.admit(max_tokens=200)
        await desk.first_token(stream_id)
        await desk.redis.hset(redis_keys.stream_key(stream_id), mapping={"admitted_ms": 1, "deadline_ms": 60_001})
    record = await desk.queue.record(stream_id)
    assert record is not None
    assert record.state is StreamState.QUEUED
    async with run_worker(config=snapshot(2, simulated("sim"))):
        answer = await desk.answer(stream_id)
        reference = await desk.answer(await desk.admit(max_tokens=200))
    answer.check_order(owners=2)
    assert answer.text == reference.text
    assert answer.end.usage == reference.end.usage
    assert [start.attempt for start in answer.starts] == [1, 1], "a drain is nobody's failure"


async def test_what_is_left_of_a_drain_is_handed_over_and_the_worker_comes_back(
    desk: Desk, run_worker: RunWorker
) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        first = (await desk.worker_in(WorkerState.READY)).incarnation
        async with run_worker(simulated("sim", engine_args=SLOW)):
            streams = [await desk.admit(max_tokens=200) for _ in range(STREAMS)]
            for stream_id in streams:
                await desk.first_token(stream_id)
            await drain_worker(desk.redis, first, reason="a test", deadline_seconds=0.1)
            drained = await desk.worker_that(lambda info: is_drained(info, first))
            assert drained.drain_reason == "a test"
            assert drained.drain_until > drained.started_at
            assert not drained.is_leaving
            answers = [await desk.answer(stream_id) for stream_id in streams]
            reference = await desk.answer(await desk.admit(max_tokens=200))
            assert reference.starts[0].owner != first, "a drained worker takes nothing"
            for answer in answers:
                answer.check_order(owners=None)
                assert answer.text == reference.text
                assert answer.starts[-1].owner != first
            assert any(len(answer.starts) == 2 for answer in answers), "some had begun there"
        await resume_worker(desk.redis, first)
        await desk.worker_in(WorkerState.READY)
        assert (await desk.answer(await desk.admit())).starts[0].owner == first


async def test_a_drain_lets_streams_finish(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        worker = await desk.worker_in(WorkerState.READY)
        running = await desk.admit(max_tokens=150)
        await desk.first_token(running)
        await drain_worker(desk.redis, worker.incarnation, reason="a test", deadline_seconds=LONG)
        await desk.worker_that(lambda info: info.state is WorkerState.DRAINING and info.num_streams == 1)
        waiting = await desk.admit()
        answer = await desk.answer(running)
        answer.check_order()
        assert answer.end.state is StreamState.FINISHED
        await desk.record_in(waiting, StreamState.QUEUED)
        await resume_worker(desk.redis, worker.incarnation)
        assert (await desk.answer(waiting)).end.state is StreamState.FINISHED


async def test_a_newer_order_brings_the_deadline_forward(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        worker = (await desk.worker_in(WorkerState.READY)).incarnation
        stream_id = await desk.admit(max_tokens=2000)
        await desk.first_token(stream_id)
        await drain_worker(desk.redis, worker, reason="a test", deadline_seconds=LONG)
        await desk.worker_in(WorkerState.DRAINING)
        await drain_worker(desk.redis, worker, reason="hurry", deadline_seconds=0)
        await desk.worker_that(lambda info: is_drained(info, worker))
        await desk.record_in(stream_id, StreamState.QUEUED)


@pytest.mark.parametrize("was_drained", [False, True])
async def test_who_is_told_to_leave_ends(desk: Desk, run_worker: RunWorker, was_drained: bool) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW), drain_seconds=LONG):
        worker = (await desk.worker_in(WorkerState.READY)).incarnation
        stream_id = await desk.admit(max_tokens=2000)
        await desk.first_token(stream_id)
        if was_drained:
            await drain_worker(desk.redis, worker, reason="a test", deadline_seconds=LONG)
        await drain_worker(desk.redis, worker, reason="a test", deadline_seconds=0.1, leave=True)
        await desk.nobody_left()
    await desk.record_in(stream_id, StreamState.QUEUED)


async def test_a_stream_that_is_migrated_goes_on_elsewhere(desk: Desk, run_worker: RunWorker) -> None:
    slow = simulated("sim", engine_args=SLOW)
    async with run_worker(slow), run_worker(slow):
        stream_id = await desk.admit(max_tokens=100)
        first = next(entry.owner for entry in await desk.first_token(stream_id) if isinstance(entry, Started))
        await migrate_stream(desk.redis, first, stream_id, reason="a test")
        answer = await desk.answer(stream_id)
        reference = await desk.answer(await desk.admit(max_tokens=100))
    answer.check_order(owners=2)
    assert answer.text == reference.text
    assert [start.owner == first for start in answer.starts] == [True, False]
    assert [start.attempt for start in answer.starts] == [1, 1]


async def test_nobody_else_is_there(desk: Desk, run_worker: RunWorker) -> None:
    """It waits for another worker for a while; when that time is over it goes on where it was."""
    async with run_worker(simulated("sim", engine_args=SLOW)):
        worker = (await desk.worker_in(WorkerState.READY)).incarnation
        stream_id = await desk.admit(max_tokens=150)
        await desk.first_token(stream_id)
        await migrate_stream(desk.redis, worker, stream_id, reason="a test")
        await desk.record_in(stream_id, StreamState.QUEUED)
        other = await desk.answer(await desk.admit())
        assert other.end.state is StreamState.FINISHED, "it is in nobody's way"
        await desk.record_in(stream_id, StreamState.QUEUED)
        await desk.redis.hset(redis_keys.stream_key(stream_id), "avoid_until", 1)
        answer = await desk.answer(stream_id)
    answer.check_order(owners=2)
    assert {start.owner for start in answer.starts} == {worker}


async def test_what_cannot_be_continued_exactly_stays(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=SLOW)):
        first = (await desk.worker_in(WorkerState.READY)).incarnation
        stream_id = await desk.admit(max_tokens=40, presence_penalty=1.0)
        await desk.first_token(stream_id)
        async with run_worker(simulated("sim", engine_args=SLOW)):
            await migrate_stream(desk.redis, first, stream_id, reason="a test")
            answer = await desk.answer(stream_id)
    answer.check_order()
    assert answer.end.state is StreamState.FINISHED
    assert [start.owner for start in answer.entries if isinstance(start, Started)] == [first]


async def test_orders_to_nobody_are_refused(desk: Desk) -> None:
    with pytest.raises(NotThereError, match="worker-gone"):
        await drain_worker(desk.redis, "worker-gone", reason="a test", deadline_seconds=1)


def is_drained(info: WorkerInfo, incarnation: str) -> bool:
    return info.incarnation == incarnation and info.state is WorkerState.DRAINING and info.num_streams == 0
