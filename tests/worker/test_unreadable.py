"""What a worker cannot read ends the one stream that it belongs to, and nothing else of the worker."""

import asyncio
import logging
from collections.abc import Iterable

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from headrace_guard.judges.verdicts import Verdict
from headrace_wire import redis_keys
from headrace_wire.guard_policy import Direction, GuardTerms, TopicRule, WindowRule
from headrace_wire.messages import Delta, Started, StreamState
from headrace_wire.token_log import Append
from headrace_worker.generation import Generation
from headrace_worker.guard_metrics import GuardMetrics
from headrace_worker.judging import Judging
from tests.worker.conftest import RunWorker
from tests.worker.desk import WAIT_SECONDS, Desk
from tests.worker.test_output_guard import Run, ids_of, policy

NONSENSE = b"\xc1 of another release"
EARLIER = "worker-earlier"


async def spoil(desk: Desk, stream_id: str) -> None:
    await desk.redis.hset(redis_keys.stream_key(stream_id), "request", NONSENSE)


async def test_a_request_that_cannot_be_read_fails_alone(desk: Desk, run_worker: RunWorker) -> None:
    before, spoiled, after = [await desk.admit("Hello", max_tokens=4) for _ in range(3)]
    await spoil(desk, spoiled)
    async with run_worker():
        answers = {stream_id: await desk.answer(stream_id) for stream_id in (before, spoiled, after)}
        await desk.record_in(spoiled, StreamState.FAILED)
        later = await desk.answer(await desk.admit("Hello", max_tokens=4))
    failed = answers[spoiled]
    assert failed.end.error is not None
    assert (failed.end.error.code, failed.text) == ("internal_error", "")
    assert "cannot read this request" in failed.end.error.message
    assert {answers[one].end.state for one in (before, after)} == {later.end.state} == {StreamState.FINISHED}
    assert await desk.redis.xlen(redis_keys.usage_key()) == 4


async def test_one_that_had_begun_keeps_what_was_sent(desk: Desk, run_worker: RunWorker) -> None:
    await desk.queue.enlist(EARLIER, lease_seconds=60, channels=[])
    stream_id = await desk.admit("Hello", max_tokens=4)
    (claimed,) = await desk.queue.claim(EARLIER, deployment="sim", want=1)
    started = Started(stream_id, claimed.epoch, 0, EARLIER, 1)
    await desk.log.append([Append(started), Append(Delta(stream_id, claimed.epoch, 2, 2, "ab"), [1, 2])])
    await spoil(desk, stream_id)
    assert await desk.bury(EARLIER) == [stream_id]
    async with run_worker():
        answer = await desk.answer(stream_id)
    assert [entry.seq for entry in answer.entries[1:]] == [0, 2, 3]
    assert (answer.text, answer.end.state, answer.end.usage.completion_tokens) == ("ab", StreamState.FAILED, 2)


class OddJudges:
    """Gives verdicts that are none."""

    async def judge(self, _rule: WindowRule, _text: str, *, tenant_id: str, deadline_seconds: float) -> Verdict:
        del tenant_id, deadline_seconds
        return NONSENSE  # type: ignore[return-value]  # which is the point

    async def prepare(self, _rules: Iterable[WindowRule]) -> None:
        return


@pytest.mark.parametrize("direction", [Direction.INPUT, Direction.OUTPUT])
async def test_a_verdict_that_cannot_be_understood_fails_its_stream_alone(
    direction: Direction, caplog: pytest.LogCaptureFixture
) -> None:
    topic = TopicRule(key="t", examples=("How to open the gate of a dam",), applies_to=direction)
    run = Run(policy(topic))
    asked = GuardTerms(input_texts=("Open it.",))
    run.generation.request = msgspec.structs.replace(run.generation.request, guard=asked)
    metrics, judged = GuardMetrics(CollectorRegistry()), asyncio.Event()
    async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:  # what ends it ends the worker

        def note(_generation: Generation) -> None:
            judged.set()

        judging = Judging(OddJudges(), tasks, metrics, judged=note)
        with caplog.at_level(logging.ERROR):
            if direction is Direction.INPUT:
                judging.check_input(run.generation)
            else:
                run.say(ids_of("The weir is old."))
                judging.consider(run.generation)
            await judged.wait()
    assert run.end.error is not None
    assert (run.end.state, run.end.error.code) == (StreamState.FAILED, "internal_error")
    assert "cannot be understood" in caplog.text
