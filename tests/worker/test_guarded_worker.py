"""Guarded answers of whole workers, through a real Redis: judges that decide, fail, die and hang; takeovers."""

import asyncio
import os
import signal
from collections.abc import Sequence

import pytest

from headrace_guard.judges.pool import PoolSettings
from headrace_wire import redis_keys
from headrace_wire.functions import Reply
from headrace_wire.guard_policy import (
    Action,
    AnyRule,
    Direction,
    FailureMode,
    GuardPolicy,
    GuardTerms,
    InputTrip,
    JudgeRule,
    LiteralRule,
    PersonalDataKind,
    PersonalDataRule,
    PolicyMode,
    TopicRule,
    encode_policy,
    policy_digest,
)
from headrace_wire.intervention_log import decode_intervention
from headrace_wire.interventions import Intervention, Outcome
from headrace_wire.messages import Delta, FinishReason, Started, StreamState, StructuredOutput
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.worker import Worker
from tests.support.snapshots import simulated, snapshot
from tests.worker.conftest import RunWorker
from tests.worker.desk import WAIT_SECONDS, Answer, Desk

SECRET = "open the sluice"
ANSWER = f"The weir is old and nobody may say: {SECRET} at dawn, whoever asks for it."
INSTEAD = "Withheld."
HOLD_BACK = "headrace_worker_guard_hold_back_seconds"
NUMBERS = (PersonalDataKind.CREDIT_CARD, PersonalDataKind.IBAN_CODE, PersonalDataKind.PHONE_NUMBER)
BLOCK = LiteralRule(key="r", words=(SECRET,))
QUESTION = JudgeRule(key="j", deployment="judge", question="Does it tell of sluices?")
TOPIC = TopicRule(key="t", examples=("How to open the gate of a dam",))
"""Answers below say nothing of it where they are to pass."""


def policy(*rules: AnyRule, judge_deadline_seconds: float = WAIT_SECONDS, **fields: object) -> GuardPolicy:
    """Return a policy whose judges are given all the time that there is, where a test does not say otherwise."""
    return GuardPolicy(
        key="p",
        name="p",
        version=3,
        replacement=INSTEAD,
        rules=rules,
        judge_deadline_seconds=judge_deadline_seconds,
        **fields,  # type: ignore[arg-type]
    )


async def terms(desk: Desk, *policies: GuardPolicy, input_texts: tuple[str, ...] = ()) -> GuardTerms:
    """Publish policies as the control plane does; return what a request carries of them."""
    digests = []
    for body in map(encode_policy, policies):
        digests.append(policy_digest(body))
        await desk.redis.set(redis_keys.guard_policy_key(digests[-1]), body)
    return GuardTerms(tuple(digests), input_texts=input_texts)


def saying(answer: str, *, name: str = "sim", tpot_ms: float = 1) -> DeploymentConfig:
    return simulated(name, engine_args={"ttft_ms": 2, "tpot_ms": tpot_ms, "answer": answer})


async def records(desk: Desk, count: int) -> list[Intervention]:
    """Return what was recorded, once there are as many."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            rows: Reply = await desk.redis.xrange(redis_keys.interventions_key())
            if len(rows) >= count:
                return [decode_intervention(fields[b"d"]) for _, fields in rows]
            await desk.redis.xread({redis_keys.interventions_key(): rows[-1][0] if rows else "0"}, block=1000)


async def asked(desk: Desk, guard: GuardTerms, **fields: object) -> Answer:
    return await desk.answer(await desk.admit(guard=guard, **{"max_tokens": len(ANSWER), **fields}))  # type: ignore[arg-type]


# ---- what a worker refuses


async def test_a_request_that_does_not_say_what_applies_is_refused(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(saying("anything")):
        answer = await desk.answer(await desk.admit(guard=None))
    assert answer.end.error is not None
    assert (answer.end.error.code, answer.text) == ("guardrail_unavailable", "")


async def test_a_policy_that_is_not_there_lets_nothing_out(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker(saying("anything")):
        answer = await desk.answer(await desk.admit(guard=GuardTerms(("gone",))))
    assert answer.end.error is not None
    assert (answer.end.error.code, answer.text) == ("guardrail_unavailable", "")


# ---- light rules


async def test_the_engine_is_aborted_when_a_rule_trips(desk: Desk, run_worker: RunWorker) -> None:
    guard = await terms(desk, policy(BLOCK))
    async with run_worker(saying(ANSWER, tpot_ms=20)) as worker:
        answer = await asked(desk, guard, max_tokens=2000, ignore_eos=True)
        assert answer.end.state is StreamState.REPLACED
        assert answer.end.usage.completion_tokens < len(ANSWER)
        idle = await desk.worker_that(lambda info: info.num_requests_running == 0)
        assert idle.tokens_generated < len(ANSWER), "what was not wanted was not generated"
        assert not len(worker._streams)
    (record,) = await records(desk, 1)
    assert (record.outcome, record.policy_version, record.rule) == (Outcome.BLOCKED, 3, "r")
    assert ANSWER[record.start : record.end] == SECRET


async def test_a_stream_keeps_the_version_that_it_was_admitted_with(desk: Desk, run_worker: RunWorker) -> None:
    old = await terms(desk, policy(LiteralRule(key="r", words=("weir",))))
    new = await terms(desk, policy(LiteralRule(key="r", words=("dawn",))))
    async with run_worker(saying(ANSWER)):
        assert (await asked(desk, old)).text == "The "
        assert (await asked(desk, new)).text.endswith("at ")
        assert (await asked(desk, old)).text == "The "


@pytest.mark.parametrize("tokens", [3, 20, 41, 47, 55])
async def test_a_takeover_lets_nothing_out_and_loses_nothing(desk: Desk, run_worker: RunWorker, tokens: int) -> None:
    masks = PersonalDataRule(key="m", kinds={PersonalDataKind.CREDIT_CARD: Action.MASK})
    text = "Pay by the old card that reads 4111 1111 1111 1111, then row home."
    guard = await terms(desk, policy(masks))
    async with run_worker(saying(text, tpot_ms=10), drain_seconds=0.01):
        stream_id = await desk.admit(guard=guard, max_tokens=len(text), seed=1)
        await desk.read_until(stream_id, lambda entry: isinstance(entry, Delta) and entry.seq >= tokens)
    async with run_worker(saying(text)):
        answer = await desk.answer(stream_id)
    answer.check_order(owners=None)
    assert "1111" not in answer.text
    assert answer.text.startswith("Pay by the old card that reads ")
    assert answer.text.endswith(", then row home.")


# ---- windows


def two(answer: str, verdict: str) -> Sequence[DeploymentConfig]:
    return saying(answer), saying(verdict, name="judge")


@pytest.mark.parametrize(("verdict", "state"), [("yes", StreamState.REPLACED), ("no", StreamState.FINISHED)])
async def test_another_deployment_judges_each_window(
    desk: Desk, run_worker: RunWorker, verdict: str, state: StreamState
) -> None:
    sim, judge = two(ANSWER, verdict)
    guard = await terms(desk, policy(QUESTION))
    async with run_worker(sim, config=snapshot(1, sim, judge)), run_worker(judge, config=snapshot(2, sim, judge)):
        answer = await asked(desk, guard, max_tokens=len(ANSWER))
    assert answer.end.state is state
    assert answer.text == ("" if verdict == "yes" else ANSWER)
    assert answer.end.timings.guard_time > 0 if verdict == "no" else answer.end.replacement is not None


async def test_a_window_delays_by_itself_and_no_more(desk: Desk, run_worker: RunWorker) -> None:
    sim, judge = saying(ANSWER, tpot_ms=10), saying("no", name="judge")
    guard = await terms(desk, policy(QUESTION, chunk_size=8, context_size=4))
    async with (
        run_worker(sim, config=snapshot(1, sim, judge)) as worker,
        run_worker(judge, config=snapshot(2, sim, judge)),
    ):
        answer = await asked(desk, guard)
        (first, *_) = [delta for delta in answer.deltas if delta.text]
        # Where its verdict is late, the engine has stopped, and the text comes with the first token after that.
        assert 8 <= first.seq <= 4 + 3 * 8 + 1
        assert answer.end.timings.guard_time >= 7 * 0.010 * 0.9
        (held,) = [s for m in worker._metrics._registry.collect() for s in m.samples if s.name == f"{HOLD_BACK}_sum"]
        assert held.value == pytest.approx(answer.end.timings.guard_time)


async def test_an_innocent_answer_is_not_delayed_by_light_rules(desk: Desk, run_worker: RunWorker) -> None:
    words = tuple(f"word{number}" for number in range(1000))
    rules = (LiteralRule(key="w", words=words), PersonalDataRule(key="p", kinds=dict.fromkeys(NUMBERS, Action.MASK)))
    guard = await terms(desk, policy(*rules))
    # In small letters: where every letter is a token of its own, a capital one may begin an IBAN.
    async with run_worker(saying("the mill by the river stands as it ever did. ", tpot_ms=5)):
        answer = await asked(desk, guard, max_tokens=300)
    assert [delta.seq for delta in answer.deltas[:-1] if not delta.text] == []
    assert answer.end.timings.guard_time == 0.0


async def test_a_takeover_in_the_middle_of_a_window(desk: Desk, run_worker: RunWorker) -> None:
    sim, judge = two(ANSWER, "no")
    slow = saying(ANSWER, tpot_ms=30)
    guard = await terms(desk, policy(QUESTION))
    async with run_worker(judge, config=snapshot(1, sim, judge)):
        async with run_worker(slow, config=snapshot(2, slow, judge), drain_seconds=0.01):
            stream_id = await desk.admit(guard=guard, max_tokens=len(ANSWER), seed=1)
            await desk.read_until(stream_id, lambda entry: isinstance(entry, Delta) and entry.seq >= 21)
        async with run_worker(sim, config=snapshot(3, sim, judge)):
            answer = await desk.answer(stream_id)
    answer.check_order(owners=None)
    assert len(answer.starts) == 2
    assert answer.text == ANSWER


async def test_what_a_topic_is_like_is_not_shown(desk: Desk, run_worker: RunWorker) -> None:
    guard = await terms(desk, policy(TOPIC, chunk_size=64, context_size=32))
    told = "To open the dam gate, turn the wheel on its left side."
    async with run_worker(saying(told)):
        answer = await asked(desk, guard, max_tokens=len(told))
    assert answer.end.state is StreamState.REPLACED
    assert answer.text == ""
    (record,) = await records(desk, 1)
    assert (record.rule_kind, record.outcome) == ("topic", Outcome.BLOCKED)


# ---- judges that fail


@pytest.mark.parametrize("failure_mode", list(FailureMode))
async def test_a_judge_that_nobody_serves(desk: Desk, run_worker: RunWorker, failure_mode: FailureMode) -> None:
    guard = await terms(desk, policy(QUESTION, failure_mode=failure_mode, judge_deadline_seconds=0.2))
    sim, judge = two("A short answer.", "no")
    async with run_worker(sim, config=snapshot(1, sim, judge)):
        answer = await asked(desk, guard, max_tokens=15)
    await check_failure(desk, answer, failure_mode, "A short answer.", "timeout")


@pytest.mark.parametrize("failure_mode", list(FailureMode))
@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_judge_that_dies_or_hangs(
    desk: Desk, run_worker: RunWorker, failure_mode: FailureMode, strike: signal.Signals
) -> None:
    """Killed in its work, or stopped: both over each window of the answer, so that no new child can save it."""
    text = "The mill stands by the meadow, and the miller sleeps."
    guard = await terms(desk, policy(TOPIC, failure_mode=failure_mode, judge_deadline_seconds=1.0))
    async with run_worker(saying(text)) as worker:
        await worker._judges.prepare([TOPIC])
        striking = asyncio.create_task(_strike(worker, strike))
        answer = await asked(desk, guard, max_tokens=len(text))
        striking.cancel()
        await asyncio.wait({striking})
    await check_failure(desk, answer, failure_mode, text, None)


@pytest.mark.parametrize("failure_mode", list(FailureMode))
async def test_judges_that_have_too_much_to_do(
    desk: Desk, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch, failure_mode: FailureMode
) -> None:
    text = "The mill stands by the meadow, and the miller sleeps."
    guard = await terms(desk, policy(TOPIC, failure_mode=failure_mode))
    async with run_worker(saying(text)) as worker:
        monkeypatch.setattr(worker._judges, "_settings", PoolSettings(queue_limit=0))
        answer = await asked(desk, guard, max_tokens=len(text))
    await check_failure(desk, answer, failure_mode, text, "overload")


async def _strike(worker: Worker, strike: signal.Signals) -> None:
    """Strike every child that the pool has, again and again."""
    struck: set[int] = set()
    while True:
        for pid in set(worker._judges.pids) - struck:
            os.kill(pid, strike)
            struck.add(pid)
        await asyncio.sleep(0.001)


async def check_failure(desk: Desk, answer: Answer, failure_mode: FailureMode, text: str, reason: str | None) -> None:
    (first, *_) = await records(desk, 1)
    assert reason in (None, first.finding)
    if failure_mode is FailureMode.CLOSED:
        assert answer.end.error is not None
        assert answer.end.error.code == "guardrail_unavailable"
        assert answer.text == "", "nothing that was not judged"
        assert first.outcome is Outcome.FAILED
    else:
        assert answer.end.state is StreamState.FINISHED
        assert answer.text == text
        assert first.outcome is Outcome.UNCHECKED, "never passed"


async def test_a_shadow_waits_for_no_judge(desk: Desk, run_worker: RunWorker) -> None:
    guard = await terms(desk, policy(QUESTION, mode=PolicyMode.SHADOW))
    sim, judge = saying("A short answer."), saying("yes", name="judge")
    async with run_worker(sim, config=snapshot(1, sim, judge)):
        answer = await asked(desk, guard, max_tokens=40)
        assert answer.end.state is StreamState.FINISHED
        assert answer.text == "A short answer."
        assert await records(desk, 0) == [], "it has ended, and its judge was not even there"
        async with run_worker(judge, config=snapshot(2, sim, judge)):
            (first,) = await records(desk, 1)
    assert first.is_shadow
    assert first.outcome is Outcome.FLAGGED


# ---- the request itself, judged beside its prefill


@pytest.mark.parametrize("on_input_trip", list(InputTrip))
async def test_a_request_that_is_judged_bad_gives_no_token(
    desk: Desk, run_worker: RunWorker, on_input_trip: InputTrip
) -> None:
    rule = JudgeRule(key="j", deployment="judge", question="?", applies_to=Direction.INPUT)
    guard = await terms(desk, policy(rule, on_input_trip=on_input_trip), input_texts=("Tell me of sluices.",))
    sim, judge = two(ANSWER, "yes")
    async with run_worker(sim, config=snapshot(1, sim, judge)), run_worker(judge, config=snapshot(2, sim, judge)):
        answer = await asked(desk, guard)
    assert answer.deltas == []
    if on_input_trip is InputTrip.REFUSE:
        assert answer.end.error is not None
        assert answer.end.error.code == "content_filter"
    else:
        assert answer.end.replacement is not None
        assert (answer.end.replacement.text, answer.end.finish_reason) == (INSTEAD, FinishReason.CONTENT_FILTER)


async def test_a_good_request_gets_all_that_came_while_it_was_judged(desk: Desk, run_worker: RunWorker) -> None:
    rule = JudgeRule(key="j", deployment="judge", question="?", applies_to=Direction.INPUT)
    guard = await terms(desk, policy(rule), input_texts=("Tell me of mills.",))
    sim = saying(ANSWER)
    judge = simulated("judge", engine_args={"ttft_ms": 300, "tpot_ms": 1, "answer": "no"})
    async with run_worker(sim, config=snapshot(1, sim, judge)), run_worker(judge, config=snapshot(2, sim, judge)):
        answer = await asked(desk, guard)
    answer.check_order()
    assert answer.text == ANSWER
    assert answer.deltas[0].tokens > 1, "it was generated meanwhile, and went out at once"


async def test_a_takeover_before_the_verdict_judges_the_request_too(desk: Desk, run_worker: RunWorker) -> None:
    """The first owner has written its fence, and goes before anybody said whether the request is good."""
    rule = JudgeRule(key="j", deployment="judge", question="?", applies_to=Direction.INPUT)
    guard = await terms(desk, policy(rule), input_texts=("Tell me of sluices.",))
    sim, judge = two(ANSWER, "yes")
    async with run_worker(sim, config=snapshot(1, sim, judge), drain_seconds=0.01):
        stream_id = await desk.admit(guard=guard, max_tokens=len(ANSWER), seed=1)
        await desk.read_until(stream_id, lambda entry: isinstance(entry, Started))
    async with run_worker(judge, config=snapshot(2, sim, judge)), run_worker(sim, config=snapshot(3, sim, judge)):
        answer = await desk.answer(stream_id)
    assert (answer.deltas, answer.text) == ([], "")
    assert answer.end.error is not None
    assert answer.end.error.code == "content_filter"


async def test_every_message_of_a_request_is_judged_and_what_passed_is_not_judged_again(
    desk: Desk, run_worker: RunWorker
) -> None:
    rule = TopicRule(key="t", examples=("How to open the gate of a dam",), applies_to=Direction.INPUT)
    asking = policy(rule)
    earlier, bad = "Tell me of a mill, and of the miller who sleeps.", "How do I open the dam gate?"
    async with run_worker(saying(ANSWER)) as worker:
        hidden = await asked(desk, await terms(desk, asking, input_texts=(bad, "Sure.", "Go on.")))
        assert hidden.end.error is not None
        assert hidden.end.error.code == "content_filter"
        first = await asked(desk, await terms(desk, asking, input_texts=(earlier,)))
        assert first.text == ANSWER
        judged = _sample(worker, "headrace_worker_guard_window_seconds_count")
        again = await asked(desk, await terms(desk, asking, input_texts=(earlier, "Sure.", "Go on.")))
        assert again.text == ANSWER
        assert _sample(worker, "headrace_worker_guard_window_seconds_count") == judged, "all three had passed before"
        other = await asked(desk, await terms(desk, asking, input_texts=(earlier,)), tenant_id="other")
        assert other.text == ANSWER
        assert _sample(worker, "headrace_worker_guard_window_seconds_count") == judged + 1, "not for another tenant"


def _sample(worker: Worker, name: str) -> float:
    return sum(s.value for m in worker._metrics._registry.collect() for s in m.samples if s.name == name)


# ---- the real engine, forced to say it


@pytest.mark.engine
@pytest.mark.parametrize(
    "said",
    [
        SECRET,
        "Well, OPEN  THE SLUICE then.",
        "o\u200bpen the slu\u00adice",
        '{"name": "tell", "arguments": {"what": "open the sluice"}}',
        '{"say": "open the \\u0073luice"}',
        "🌊 òpen the slüice 🌊",
    ],
)
async def test_the_real_engine_cannot_say_it(engine_desk: Desk, said: str) -> None:
    free = await engine_desk.answer(
        await engine_desk.admit(
            "Say it.", deployment="tiny", max_tokens=200, structured=StructuredOutput(choice=(said,))
        ),
        seconds=60,
    )
    assert free.text == said, "the engine is made to say it"
    guard = await terms(engine_desk, policy(BLOCK))
    guarded = await engine_desk.answer(
        await engine_desk.admit(
            "Say it.", deployment="tiny", max_tokens=200, structured=StructuredOutput(choice=(said,)), guard=guard
        ),
        seconds=60,
    )
    assert guarded.end.state is StreamState.REPLACED
    assert said.startswith(guarded.text)
    assert len(guarded.text) <= max(said.lower().find("op"), said.find("o\u200b"), said.find("ò"), 0)
