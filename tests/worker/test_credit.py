"""Credit through the whole worker: held, shown, suspended, resumed; the answer is as if nothing had happened."""

import asyncio
import time

import pytest

from headrace_wire import redis_keys
from headrace_wire.messages import StreamState
from headrace_worker import holding
from headrace_worker.config import HoldLimits
from headrace_worker.holding import SUSPENSIONS_PER_MINUTE
from tests.support.snapshots import simulated
from tests.worker.conftest import RunWorker
from tests.worker.desk import Answer, Desk

FAST = {"ttft_ms": 1, "tpot_ms": 1}
QUICK = HoldLimits(hold_seconds=0.4)
PATIENT = HoldLimits(hold_seconds=60.0)


async def logged(desk: Desk, stream_id: str) -> int:
    """Return how many tokens a stream's engine has generated."""
    return len(await desk.log.token_ids(stream_id))


async def reference_for(desk: Desk, max_tokens: int = 60) -> Answer:
    """Return the undisturbed answer to the prompt that all streams here have."""
    return await desk.answer(await desk.admit(max_tokens=max_tokens))


def check_equal(answer: Answer, reference: Answer, *, owners: int | None) -> None:
    answer.check_order(owners=owners)
    assert answer.text == reference.text
    assert (answer.end.state, answer.end.usage) == (reference.end.state, reference.end.usage)


async def test_a_stream_waits_at_its_window(desk: Desk, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_worker(simulated("sim", engine_args=FAST), limits=PATIENT):
        reference = await reference_for(desk)
        stream_id = await desk.admit(max_tokens=60, window=10)
        record = await desk.record_in(stream_id, StreamState.HELD)
        assert (record.reason, await desk.tokens(stream_id, 10)) == ("slow_consumer", 10)
        await reference_for(desk)
        assert await logged(desk, stream_id) == 10, "many steps of the engine later"
        monkeypatch.setattr(holding, "SHOWN_AFTER_SECONDS", 3.0)  # so that nobody misses that it runs
        await desk.queue.credit([(stream_id, 25)])
        await desk.record_that(stream_id, lambda record: record.state is StreamState.RUNNING)
        await desk.record_in(stream_id, StreamState.HELD)
        assert await desk.tokens(stream_id, 25) == 25
        await desk.queue.credit([(stream_id, 2**31 - 1)])
        answer = await desk.answer(stream_id)
    check_equal(answer, reference, owners=1)


async def test_deadlines_wait_while_it_is_held(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=FAST), limits=PATIENT):
        stream_id = await desk.admit(
            max_tokens=60, window=10, inter_token_timeout_seconds=3.0, ttft_timeout_seconds=3.0
        )
        await desk.record_in(stream_id, StreamState.HELD)
        await desk.worker_that(lambda info: info.num_requests_held == 1)
        await asyncio.sleep(3.2)  # more than both deadlines
        await desk.queue.credit([(stream_id, 100)])
        answer = await desk.answer(stream_id)
    assert answer.end.state is StreamState.FINISHED


async def test_held_streams_leave_their_slots_to_others(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=FAST, max_num_seqs=2), limits=PATIENT):
        held = [await desk.admit(max_tokens=60, window=5) for _ in range(6)]
        for stream_id in held:
            await desk.record_in(stream_id, StreamState.HELD)
        reference = await reference_for(desk)
        await desk.queue.credit([(stream_id, 100) for stream_id in held])
        for stream_id in held:
            check_equal(await desk.answer(stream_id), reference, owners=1)


async def test_suspended_and_resumed(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=FAST), limits=QUICK):
        reference = await reference_for(desk)
        admitted_at = time.monotonic()
        stream_id = await desk.admit(max_tokens=60, window=10)
        await desk.first_token(stream_id)
        waited = time.monotonic() - admitted_at
        record = await desk.record_in(stream_id, StreamState.SUSPENDED)
        assert record.reason == "slow_consumer"
        await desk.worker_that(lambda info: info.num_requests_running == 0 and info.kv_cache_usage == 0)
        await desk.queue.credit([(stream_id, 20)])
        await desk.record_in(stream_id, StreamState.SUSPENDED)
        assert await desk.tokens(stream_id, 20) == 20
        await desk.queue.credit([(stream_id, 100)])
        answer = await desk.answer(stream_id)
    check_equal(answer, reference, owners=3)
    assert [start.attempt for start in answer.starts] == [1, 1, 1], "a suspension is no failed attempt"
    assert answer.end.timings.queue_time <= waited, "not of the time when it was suspended"


async def test_another_worker_resumes(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=FAST), limits=QUICK):
        reference = await reference_for(desk)
        stream_id = await desk.admit(max_tokens=60, window=10)
        await desk.record_in(stream_id, StreamState.SUSPENDED)
    async with run_worker(simulated("sim", engine_args=FAST)):
        await desk.queue.credit([(stream_id, 100)])
        check_equal(await desk.answer(stream_id), reference, owners=2)


async def test_resumed_streams_go_before_new_ones(desk: Desk, run_worker: RunWorker) -> None:
    deployment = simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 5}, max_num_seqs=1)
    async with run_worker(deployment, limits=QUICK):
        stream_id = await desk.admit(max_tokens=20, window=5)
        await desk.record_in(stream_id, StreamState.SUSPENDED)
        running = await desk.admit(max_tokens=2000)
        await desk.first_token(running)
        waiting = [await desk.admit(max_tokens=40) for _ in range(3)]
        await desk.queue.credit([(stream_id, 100)])
        await desk.cancel(running)
        resumed = await desk.answer(stream_id)
        answers = [await desk.answer(each) for each in waiting]
    # An owner's epoch is the time of its claim.
    assert resumed.starts[-1].epoch < min(answer.starts[0].epoch for answer in answers)


async def test_a_reader_that_comes_and_goes_causes_no_storm(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=FAST), limits=HoldLimits(hold_seconds=0.05)):
        reference = await reference_for(desk)
        stream_id = await desk.admit(max_tokens=60, window=1)
        for position in range(1, 60):
            await desk.read_until(stream_id, lambda entry, position=position: entry.seq == position)  # type: ignore[misc]
            await asyncio.sleep(0.06)  # it goes, longer than it may be held
            await desk.queue.credit([(stream_id, position + 1)])
        answer = await desk.answer(stream_id)
    check_equal(answer, reference, owners=None)
    assert len(answer.starts) == SUSPENSIONS_PER_MINUTE


async def test_penalties_are_held_and_never_suspended(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=FAST), limits=HoldLimits(hold_seconds=0.1)):
        stream_id = await desk.admit(max_tokens=60, window=10, frequency_penalty=0.5)
        other = await desk.admit(max_tokens=60, window=10)
        await desk.record_in(stream_id, StreamState.HELD)
        await desk.record_in(other, StreamState.SUSPENDED)
        record = await desk.queue.record(stream_id)
        assert record is not None
        assert record.state is StreamState.HELD
        await desk.queue.credit([(stream_id, 100)])
        answer = await desk.answer(stream_id)
    answer.check_order(owners=1)


async def test_credit_whose_message_got_lost_comes_with_the_renewal(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=FAST), limits=PATIENT):
        stream_id = await desk.admit(max_tokens=30, window=10)
        await desk.record_in(stream_id, StreamState.HELD)
        await desk.redis.hset(redis_keys.stream_key(stream_id), "credit", "100")
        answer = await desk.answer(stream_id)
    assert answer.end.state is StreamState.FINISHED


async def test_too_much_kv_cache_held_is_given_up(desk: Desk, run_worker: RunWorker) -> None:
    """Each keeps 60 of 600 tokens: four of a tenant are over its share, seven in all over the worker's."""
    limits = HoldLimits(hold_seconds=60.0, kv_share=0.45, kv_share_per_tenant=0.35)
    arguments = {**FAST, "kv_tokens": 600}
    prompt = list(range(50))
    async with run_worker(simulated("sim", engine_args=arguments), limits=limits):
        greedy = [await desk.admit(prompt, max_tokens=60, window=10, tenant_id="greedy") for _ in range(4)]
        for stream_id in greedy:
            await desk.record_that(stream_id, lambda record: record.state is not StreamState.QUEUED)
        first = await desk.record_in(greedy[0], StreamState.SUSPENDED)
        assert first.reason == "kv_budget"
        others = [await desk.admit(prompt, max_tokens=60, window=10, tenant_id=f"other {i}") for i in range(3)]
        await desk.record_in(greedy[1], StreamState.SUSPENDED)
        await desk.record_in(greedy[2], StreamState.SUSPENDED)
        states = [record.state for s in [greedy[3], *others] if (record := await desk.queue.record(s)) is not None]
        assert StreamState.SUSPENDED not in states
        await desk.queue.credit([(stream_id, 100) for stream_id in greedy + others])
        for stream_id in greedy + others:
            assert (await desk.answer(stream_id)).end.usage.completion_tokens == 60


async def test_cancelled_while_held(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=FAST), limits=PATIENT):
        stream_id = await desk.admit(max_tokens=60, window=10)
        await desk.record_in(stream_id, StreamState.HELD)
        await desk.cancel(stream_id)
        answer = await desk.answer(stream_id)
        await desk.worker_that(lambda info: info.kv_cache_usage == 0)
    answer.check_order()
    assert answer.end.state is StreamState.CANCELLED
    assert answer.end.usage.completion_tokens == 10


async def test_cancelled_while_it_is_being_suspended(desk: Desk, run_worker: RunWorker) -> None:
    """Only the record knows of the cancel yet: the queue does not take the stream, and its owner ends it."""
    async with run_worker(
        simulated("sim", engine_args=FAST), limits=HoldLimits(hold_seconds=4.0), lease_seconds=60, renew_seconds=20
    ):
        stream_id = await desk.admit(max_tokens=60, window=10)
        await desk.record_in(stream_id, StreamState.HELD)
        await desk.redis.hset(redis_keys.stream_key(stream_id), "cancel", "client")
        answer = await desk.answer(stream_id)
    answer.check_order()
    assert answer.end.state is StreamState.CANCELLED


async def test_a_drain_does_not_wait_for_who_is_held(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args=FAST), limits=PATIENT, drain_seconds=60) as worker:
        reference = await reference_for(desk)
        held = await desk.admit(max_tokens=60, window=10)
        await desk.record_in(held, StreamState.HELD)
        worker.stop()
        await desk.record_in(held, StreamState.SUSPENDED)
    await desk.queue.credit([(held, 100)])
    async with run_worker():
        check_equal(await desk.answer(held), reference, owners=2)


async def test_a_stream_without_a_window_has_no_limit(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 5})):
        stream_id = await desk.admit(max_tokens=60)
        await desk.first_token(stream_id)
        await desk.queue.credit([(stream_id, 10)])
        assert (await desk.answer(stream_id)).end.usage.completion_tokens == 60


@pytest.mark.parametrize("process", [False, True])
async def test_an_engine_that_dies_with_held_streams(desk: Desk, run_worker: RunWorker, process: bool) -> None:
    arguments = {**FAST, "process": process, "poison_id": 77, "poison_at": 1}
    async with run_worker(simulated("sim", engine_args=arguments), limits=PATIENT):
        reference = await reference_for(desk)
        held = [await desk.admit(max_tokens=60, window=10) for _ in range(3)]
        for stream_id in held:
            await desk.record_in(stream_id, StreamState.HELD)
        assert (await desk.answer(await desk.admit((77,)))).end.state is StreamState.FAILED
        await desk.queue.credit([(stream_id, 100) for stream_id in held])
        for stream_id in held:
            check_equal(await desk.answer(stream_id), reference, owners=None)
