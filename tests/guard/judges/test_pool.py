"""The pool with real children: what it judges, and every way in which a child can fail it."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable

import psutil
import pytest

from headrace_guard.judges.pool import JudgePool, PoolSettings
from headrace_guard.judges.verdicts import JudgeFailure, Verdict
from headrace_wire.guard_policy import AbuseRule, JudgeRule, LanguageRule, TopicRule
from tests.support.environment import child_environment

ABUSE = AbuseRule(key="a")
BAD, GOOD = "You are an idiot and an asshole.", "Thank you for the discussion."
PATIENT = 180.0
"""No deadline: these tests run on busy machines."""

Pool = Callable[..., JudgePool]


@pytest.fixture
async def make_pool() -> AsyncIterator[Pool]:
    async with contextlib.AsyncExitStack() as stack:
        pools: list[JudgePool] = []

        def make(**settings: float) -> JudgePool:
            pools.append(JudgePool(settings=PoolSettings(**settings)))  # type: ignore[arg-type]
            stack.push_async_callback(pools[-1].close)
            return pools[-1]

        yield make


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT):
        while not condition():  # noqa: ASYNC110  # another process' state
            await asyncio.sleep(0.01)


async def reason_of(judging: Awaitable[Verdict]) -> str:
    with pytest.raises(JudgeFailure) as caught:
        await judging
    return caught.value.reason


async def in_flight(pool: JudgePool, text: str = BAD, *, deadline_seconds: float = PATIENT) -> asyncio.Task[Verdict]:
    """Start a judgement that the (stopped) child has got."""
    task = asyncio.create_task(pool.judge(ABUSE, text, deadline_seconds=deadline_seconds))
    await until(lambda: pool.judging == 1)
    return task


async def served(pool: JudgePool) -> bool:
    bad = await pool.judge(ABUSE, BAD, deadline_seconds=PATIENT)
    good = await pool.judge(ABUSE, GOOD, deadline_seconds=PATIENT)
    return bad.found and not good.found


async def test_all_kinds_are_judged_and_nothing_starts_before(make_pool: Pool) -> None:
    pool = make_pool()
    assert pool.pids == []
    verdicts = await asyncio.gather(
        pool.judge(ABUSE, BAD, deadline_seconds=PATIENT),
        pool.judge(LanguageRule(key="l", allowed=("en",)), "Die Katze sitzt auf der Matte.", deadline_seconds=PATIENT),
        pool.judge(
            TopicRule(key="t", examples=("How to bake bread",)),
            "To make a loaf, let the dough rise and bake it in the oven.",
            deadline_seconds=PATIENT,
        ),
        pool.judge(
            TopicRule(key="t", examples=("How to bake bread",)), "The parliament voted.", deadline_seconds=PATIENT
        ),
    )
    assert [verdict.found for verdict in verdicts] == [True, False, True, False]
    assert len(pool.pids) == 1


async def test_a_long_text_is_judged_in_every_part(make_pool: Pool) -> None:
    pool = make_pool()
    padding = "The weather in the valley was mild, and the farmers were content. " * 90
    for text in (BAD + padding, padding + BAD + padding, padding + BAD):
        assert (await pool.judge(ABUSE, text, deadline_seconds=PATIENT)).found
    assert not (await pool.judge(ABUSE, padding, deadline_seconds=PATIENT)).found


async def test_embedding_many_examples_is_not_taken_for_a_hanging_child(make_pool: Pool) -> None:
    pool = make_pool(hang_seconds=0.0)
    assert await served(pool)
    rule = TopicRule(key="t", examples=tuple(f"A sentence about the number {number}" for number in range(200)))
    text = "What is meant by this sentence is the number 7."
    assert await reason_of(pool.judge(rule, text, deadline_seconds=0.01)) == "timeout"
    assert (await pool.judge(rule, text, deadline_seconds=PATIENT)).finding == "A sentence about the number 7"
    assert pool.restarts == 0


async def test_prepared_judges_have_their_child(make_pool: Pool) -> None:
    pool = make_pool()
    await pool.prepare([JudgeRule(key="j", deployment="d", question="?")])
    assert pool.pids == []
    await pool.prepare([ABUSE, TopicRule(key="t", examples=("How to bake bread",))])
    (pid,) = pool.pids
    assert await served(pool)
    assert pool.pids == [pid]


async def test_a_killed_child_is_a_crash_and_is_replaced(make_pool: Pool) -> None:
    pool = make_pool()
    assert await served(pool)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    task = await in_flight(pool)
    os.kill(pid, signal.SIGKILL)
    assert await reason_of(task) == "crash"
    assert await served(pool)
    assert pool.pids != [pid]
    assert pool.restarts == 1


async def test_a_child_killed_while_idle_costs_no_verdict(make_pool: Pool) -> None:
    pool = make_pool()
    assert await served(pool)
    (pid,) = pool.pids
    child = pool._children[0]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not child.is_alive)
    assert await served(pool)


async def test_a_crash_over_several_texts_fails_none_that_is_not_to_blame(make_pool: Pool) -> None:
    pool = make_pool()
    assert await served(pool)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    together = [asyncio.create_task(pool.judge(ABUSE, BAD, deadline_seconds=PATIENT)) for _ in range(3)]
    await until(lambda: pool.judging == 3)
    os.kill(pid, signal.SIGKILL)
    assert all([(await task).found for task in together])
    assert pool.restarts == 1


async def test_a_hanging_child_is_late_and_is_replaced(make_pool: Pool) -> None:
    pool = make_pool(hang_seconds=0.2)
    assert await served(pool)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    assert await reason_of(pool.judge(ABUSE, BAD, deadline_seconds=0.1)) == "timeout"
    assert await served(pool)
    assert not psutil.pid_exists(pid)


async def test_a_deadline_that_passes_in_line_does_not_cost_the_child(make_pool: Pool) -> None:
    pool = make_pool(hang_seconds=PATIENT)
    assert await served(pool)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    first = await in_flight(pool)
    assert await reason_of(pool.judge(ABUSE, BAD, deadline_seconds=0.05)) == "timeout"
    assert pool.waiting == 0
    os.kill(pid, signal.SIGCONT)
    assert (await first).found
    assert pool.pids == [pid]
    assert pool.restarts == 0


async def test_a_deadline_that_passes_while_a_child_is_only_slow_does_not_cost_the_child(make_pool: Pool) -> None:
    pool = make_pool(hang_seconds=PATIENT)
    assert await served(pool)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    assert await reason_of(await in_flight(pool, deadline_seconds=0.05)) == "timeout"
    assert pool.judging == 1
    os.kill(pid, signal.SIGCONT)
    assert await served(pool)
    assert pool.pids == [pid]
    assert pool.restarts == 0


async def test_a_full_line_is_an_overload_at_once(make_pool: Pool) -> None:
    pool = make_pool(queue_limit=2)
    assert await served(pool)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    tasks = [await in_flight(pool)]
    tasks += [asyncio.create_task(pool.judge(ABUSE, BAD, deadline_seconds=PATIENT)) for _ in range(2)]
    await until(lambda: pool.waiting == 2)
    assert await reason_of(pool.judge(ABUSE, BAD, deadline_seconds=PATIENT)) == "overload"
    os.kill(pid, signal.SIGCONT)
    assert all([(await task).found for task in tasks])
    assert await served(pool)


async def test_a_cancelled_judgement_leaves_the_line(make_pool: Pool) -> None:
    pool = make_pool()
    assert await served(pool)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    first = await in_flight(pool)
    second = asyncio.create_task(pool.judge(ABUSE, BAD, deadline_seconds=PATIENT))
    await until(lambda: pool.waiting == 1)
    second.cancel()
    await asyncio.wait({second})
    assert pool.waiting == 0
    os.kill(pid, signal.SIGCONT)
    assert (await first).found


async def test_closing_ends_the_child_whatever_it_does_and_fails_who_waits(make_pool: Pool) -> None:
    pool = make_pool()
    assert await served(pool)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    task = await in_flight(pool)
    waiting = asyncio.create_task(pool.judge(ABUSE, BAD, deadline_seconds=PATIENT))
    await until(lambda: pool.waiting == 1)
    await pool.close()
    assert {
        await reason_of(task),
        await reason_of(waiting),
        await reason_of(pool.judge(ABUSE, BAD, deadline_seconds=1)),
    } == {"error"}
    assert not psutil.pid_exists(pid)


def test_a_child_dies_with_its_owner_even_when_stopped() -> None:
    code = textwrap.dedent(
        f"""
        import asyncio, os, signal
        from headrace_guard.judges.pool import JudgePool
        from headrace_wire.guard_policy import AbuseRule

        async def main():
            pool = JudgePool()
            await pool.judge(AbuseRule(key="a"), "hello", deadline_seconds={PATIENT})
            (pid,) = pool.pids
            os.kill(pid, signal.SIGSTOP)
            print(pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(PATIENT)
    assert not psutil.pid_exists(pid)


async def test_a_child_that_cannot_start_is_a_crash(make_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nonexistent")
        assert await reason_of(pool.judge(ABUSE, BAD, deadline_seconds=PATIENT)) == "crash"
        patch.setattr(sys, "executable", shutil.which("true"))
        assert await reason_of(pool.judge(ABUSE, BAD, deadline_seconds=PATIENT)) == "crash"
    assert await served(pool)


async def test_a_judge_rule_goes_to_whoever_asks_deployments() -> None:
    class Asked:
        async def ask(self, rule: JudgeRule, text: str, tenant_id: str, deadline_seconds: float) -> Verdict:
            return Verdict(True, 1.0, f"{rule.deployment} {text} {tenant_id} {deadline_seconds}")

    rule = JudgeRule(key="j", deployment="judge", question="Is it bad?")
    async with JudgePool(Asked()) as pool:
        verdict = await pool.judge(rule, "text", tenant_id="t", deadline_seconds=2.0)
        assert verdict.finding == "judge text t 2.0"
        assert pool.pids == []
    async with JudgePool() as pool:
        assert await reason_of(pool.judge(rule, "text", deadline_seconds=2.0)) == "error"
