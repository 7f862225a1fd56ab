"""Engines that fail their streams are given up, and engines that end too often are left to a person."""

import asyncio

from msgspec.structs import replace

from headrace_wire import redis_keys
from headrace_wire.draining import resume_worker
from headrace_wire.fleet import WorkerState
from headrace_wire.guard_policy import Direction, GuardPolicy, GuardTerms, JudgeRule, encode_policy, policy_digest
from headrace_wire.messages import Ended, FinishReason, StreamError, StreamState, Timings, Usage
from headrace_worker.config import HealingLimits
from headrace_worker.failures import ENGINE_GAVE_UP, UNANSWERABLE
from headrace_worker.healing import Health
from tests.support.snapshots import publish_snapshot, simulated, snapshot
from tests.worker.conftest import NO_QUARANTINE, RunWorker
from tests.worker.desk import WAIT_SECONDS, Desk
from tests.worker.mortal_engine import Fate, MortalEngine
from tests.worker.sick_engine import SickEngine, Sickness, StillbornEngine

SLOW = {"ttft_ms": 5, "tpot_ms": 20}
EARLY = HealingLimits(error_share=0.5, error_window=4, quarantine_after=0)
THREE = HealingLimits(quarantine_after=3, quarantine_seconds=600.0)


def end(error: StreamError | None = None, state: StreamState = StreamState.FINISHED) -> Ended:
    return Ended("strm-1", 1, 1, state, FinishReason.STOP, None, Usage(), Timings(), error)


FAILED = end(ENGINE_GAVE_UP, StreamState.FAILED)


def test_more_failures_than_its_share_of_the_last_streams_make_an_engine_suspect() -> None:
    health = Health(HealingLimits(error_share=0.5, error_window=4))
    for one in (FAILED, FAILED, end(), end(), end(), FAILED, FAILED):
        health.ended(one)
        assert not health.is_suspect, "never more than two of four"
    health.ended(FAILED)
    assert health.is_suspect
    health.begin()
    assert not health.is_suspect, "the next engine is another one"


def test_what_is_not_the_engines_fault_does_not_count() -> None:
    health = Health(HealingLimits(error_share=0.0, error_window=4))
    health.ended(end(StreamError("invalid_request_error", "The prompt is empty."), StreamState.FAILED))
    health.ended(end(StreamError("guardrail_unavailable", "Not judged."), StreamState.FAILED))
    health.ended(end(UNANSWERABLE, StreamState.FAILED))
    health.ended(end(state=StreamState.CANCELLED))
    health.ended(end(state=StreamState.REPLACED))
    assert not health.is_suspect
    health.stalled(1)
    assert health.is_suspect


def test_a_share_of_one_ejects_nobody() -> None:
    health = Health(HealingLimits(error_share=1.0, error_window=4))
    for _ in range(20):
        health.ended(FAILED)
    assert not health.is_suspect


async def test_an_engine_that_gives_its_streams_up_is_ejected_and_another_one_serves(
    desk: Desk, run_worker: RunWorker
) -> None:
    sickness = Sickness()
    async with run_worker(
        simulated("sim", engine_args=SLOW, max_num_seqs=8),
        create=lambda deployment: SickEngine(deployment, sickness),
        healing=EARLY,
    ):
        streams = [await desk.admit([1, i], max_tokens=2000) for i in range(4)]
        for stream_id in streams:
            await desk.first_token(stream_id)
        sickness.is_on = sickness.is_deep = True
        answers = [await desk.answer(stream_id) for stream_id in streams]
        after = await desk.worker_that(lambda info: info.engine_failures == 1 and info.state is WorkerState.READY)
        assert after.quarantined_at == 0
        assert sickness.started == 2
        assert (await desk.answer(await desk.admit())).end.state is StreamState.FINISHED
    for answer in answers:
        assert answer.end.error == ENGINE_GAVE_UP
        answer.check_order()


async def test_an_engine_that_answers_its_host_is_kept_however_many_streams_it_gives_up(
    desk: Desk, run_worker: RunWorker
) -> None:
    """One tenant may send nothing but requests that fail by themselves."""
    sickness = Sickness()
    async with run_worker(
        simulated("sim", engine_args=SLOW, max_num_seqs=8),
        create=lambda deployment: SickEngine(deployment, sickness),
        healing=EARLY,
    ):
        well = await desk.admit([9], max_tokens=20)
        before = (await desk.answer(well)).starts[-1].owner
        sickness.is_on = True
        for _ in range(5):
            streams = [await desk.admit([1, i], max_tokens=2000) for i in range(8)]
            assert {(await desk.answer(one)).end.error for one in streams} == {ENGINE_GAVE_UP}
        async with asyncio.timeout(WAIT_SECONDS):
            await sickness.answered.wait()
        sickness.is_on = False
        answer = await desk.answer(await desk.admit([9], max_tokens=20))
        info = await desk.worker_in(WorkerState.READY)
    assert (answer.end.state, answer.starts[-1].owner) == (StreamState.FINISHED, before)
    assert (sickness.started, info.engine_failures) == (1, 0)


async def test_streams_of_an_ejected_engine_go_on_and_none_is_blamed(desk: Desk, run_worker: RunWorker) -> None:
    """One stream that has no token yet would be, had the engine died."""
    sickness = Sickness()
    async with run_worker(
        simulated("sim", engine_args={"ttft_ms": 300, "tpot_ms": 20}),
        create=lambda deployment: SickEngine(deployment, sickness),
        healing=EARLY,
    ) as worker:
        sickness.is_deep = True
        stream_id = await desk.admit(max_tokens=30)
        await desk.record_in(stream_id, StreamState.RUNNING)
        worker._streams.health.stalled(3)
        answer = await desk.answer(stream_id)
        info = await desk.worker_that(lambda info: info.engine_failures == 1)
        reference = await desk.answer(await desk.admit(max_tokens=30))
    assert info.state in {WorkerState.READY, WorkerState.LOADING}
    assert answer.text == reference.text
    assert [start.attempt for start in answer.starts][-1] == 1


async def test_too_many_ends_are_a_quarantine_until_somebody_says_so(desk: Desk, run_worker: RunWorker) -> None:
    luck: list[bool] = []
    async with run_worker(
        create=lambda deployment: StillbornEngine(deployment, luck), state=WorkerState.BROKEN, healing=THREE
    ) as worker:
        info = await desk.worker_in(WorkerState.BROKEN)
        assert info.quarantined_at > 0
        assert info.engine_failures == 3
        assert info.last_error.startswith("Quarantined: 3 engines, or processes with theirs, have ended within 600 s. ")
        assert "on its page. there is no GPU" in info.last_error
        stream_id = await desk.admit()
        luck.append(True)
        await publish_snapshot(desk.redis, snapshot(2, replace(simulated("sim"), queue_limit=7)))
        still = await desk.worker_that(lambda info: info.config_version == 2)
        assert still.quarantined_at == info.quarantined_at, "that changes nothing of the engine"
        await resume_worker(desk.redis, info.incarnation)
        assert (await desk.answer(stream_id)).end.state is StreamState.FINISHED
        well = await desk.worker_in(WorkerState.READY)
        assert (well.quarantined_at, well.engine_failures, well.last_error) == (0.0, 0, "")
        assert well.incarnation == info.incarnation, "it was registered all the time"
        assert worker._host.last_error == ""


async def test_another_configuration_ends_a_quarantine(desk: Desk, run_worker: RunWorker) -> None:
    luck: list[bool] = []
    async with run_worker(
        create=lambda deployment: StillbornEngine(deployment, luck), state=WorkerState.BROKEN, healing=THREE
    ):
        await desk.worker_that(lambda info: info.quarantined_at > 0)
        luck.append(True)
        changed = replace(simulated("sim"), max_num_seqs=7)
        await publish_snapshot(desk.redis, snapshot(2, changed))
        assert (await desk.worker_in(WorkerState.READY)).max_num_seqs == 7


async def test_without_a_limit_it_is_tried_for_ever(desk: Desk, run_worker: RunWorker) -> None:
    luck = [False] * 4 + [True]
    async with run_worker(create=lambda deployment: StillbornEngine(deployment, luck), healing=NO_QUARANTINE):
        info = await desk.worker_in(WorkerState.READY)
    assert info.engine_failures == 4
    assert luck == []


async def test_a_quarantined_worker_ends_when_it_is_told_to(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(
        create=lambda deployment: StillbornEngine(deployment, []), state=WorkerState.BROKEN, healing=THREE
    ):
        await desk.worker_that(lambda info: info.quarantined_at > 0)
    await desk.nobody_left()


async def test_a_request_is_judged_and_answered_also_after_an_engine_has_died(
    desk: Desk, run_worker: RunWorker
) -> None:
    """Streams enter the next engine in turn, until each has a token; this one's wait until its judge has spoken."""
    rule = JudgeRule(key="j", deployment="judge", question="?", applies_to=Direction.INPUT)
    policy = GuardPolicy(key="p", name="p", version=1, rules=(rule,), judge_deadline_seconds=WAIT_SECONDS)
    body = encode_policy(policy)
    await desk.redis.set(redis_keys.guard_policy_key(policy_digest(body)), body)
    guard = GuardTerms((policy_digest(body),), input_texts=("Tell me of mills.",))
    sim, judge = simulated("sim"), simulated("judge", engine_args={"ttft_ms": 1, "tpot_ms": 1, "answer": "no"})
    fate = Fate()
    async with (
        run_worker(sim, config=snapshot(1, sim, judge), create=lambda deployment: MortalEngine(deployment, fate)),
        run_worker(judge, config=snapshot(2, sim, judge)),
    ):
        fate.plan([3])
        unguarded = await desk.answer(await desk.admit())
        assert (len(unguarded.starts), fate.deaths) == (2, 1)
        answer = await desk.answer(await desk.admit(guard=guard))
        assert (answer.end.state, answer.text) == (StreamState.FINISHED, unguarded.text)
