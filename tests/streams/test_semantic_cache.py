"""Kept answers for questions that ask for the same in other words: to whom, and what must be the same."""

import os
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from apps.streams.gateway import Gateway
from apps.streams.services import CacheControls, CacheWord
from headrace_guard.judges.frames import Comparison
from headrace_wire import redis_keys
from headrace_wire.adapters import AdapterConfig
from headrace_wire.functions import Reply
from headrace_wire.guard_policy import (
    Direction,
    FailureMode,
    GuardPolicy,
    LanguageRule,
    LiteralRule,
)
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import ChatTurn, Ended, SamplingParams, Usage
from headrace_wire.usage_events import AnswerSource
from tests.support.snapshots import TENANT_A, TENANT_B, publish_snapshot, simulated

from .answers_desk import GREEDY, TEXT, Desk, age, attached
from .conftest import WORKER

PATIENT = 120.0
ASKED = "How do I reset my password?"
ALIKE = "How can I reset my password?"


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[Gateway]:
    """As everywhere, but in no hurry: the machine may be busy."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        await publish_snapshot(redis)
    gateway = Gateway(redis_url=redis_url, secret_key="test", semantic_seconds=PATIENT)
    await gateway.start()
    await gateway.queue.enlist(WORKER, lease_seconds=60, channels=[redis_keys.control_key(WORKER)])
    yield gateway
    await gateway.stop()


@pytest.fixture
async def desk(gateway: Gateway) -> Desk:
    """Both tenants have questions compared."""
    desk = Desk(gateway, WORKER)
    await desk.keep(semantic=True)
    return desk


async def questions(desk: Desk, tenant: str = TENANT_A) -> dict[str, bytes]:
    """Return the packed questions that are kept for a tenant, by the names of their answers."""
    found: dict[str, bytes] = {}
    async for key in desk.gateway.redis.scan_iter(redis_keys.kept_alike_prefix(tenant) + "*"):
        rows: Reply = await desk.gateway.redis.hgetall(key)
        found |= {name.decode(): packed for name, packed in rows.items()}
    return found


async def test_the_same_question_in_other_words_is_given_the_answer(desk: Desk) -> None:
    assert (await desk.computed(ASKED)).cache.word is CacheWord.MISS
    again = await desk.ask(ALIKE)
    assert again.cache.word is CacheWord.SEMANTIC
    assert again.cache.age_seconds is not None
    assert again.cache.similarity is not None
    assert 0.95 <= again.cache.similarity < 1
    assert await desk.claim() == [], "the engine hears nothing of it"
    entries = await again.subscription.next()
    assert isinstance(entries[-1], Ended)
    assert entries[-1].usage == Usage(7, 5)
    desk.leave(again)
    _, hit = await desk.ledger()
    assert (hit.source, hit.stream_id, hit.tenant_id) == (AnswerSource.CACHE, again.stream_id, TENANT_A)
    assert len(await questions(desk)) == 1, "an answer is not kept again for who was given it"
    exact = await desk.ask(ASKED)
    assert (exact.cache.word, exact.cache.similarity) == (CacheWord.HIT, None)
    assert await desk.read(exact) == TEXT
    for other in ("How do I reset my phone?", "How do I not reset my password?", "How do I reset my password in 2026?"):
        assert await desk.asked(other) is CacheWord.MISS, other


async def test_an_adapter_is_given_its_own_answers_and_the_model_none_of_them(desk: Desk) -> None:
    def named(name: str, revision: str = "1") -> AdapterConfig:
        return AdapterConfig(
            id=name, tenant_id=TENANT_A, deployment="sim", name=name, place=name, revision=revision * 64
        )

    await desk.configure(adapters=[named("tides"), named("ebb")])
    await desk.computed(ASKED, deployment="sim:tides")
    others = [await desk.asked(ALIKE, deployment=name) for name in ("sim", "sim:ebb")]
    assert others == [CacheWord.MISS, CacheWord.MISS]
    assert await desk.asked(ALIKE, deployment="sim:tides") is CacheWord.SEMANTIC
    await desk.configure(adapters=[named("tides", "2")])
    assert await desk.asked(ALIKE, deployment="sim:tides") is CacheWord.MISS, "other weights, another answer"


async def test_another_tenant_is_never_given_it(desk: Desk) -> None:
    await desk.computed(ASKED)
    assert await desk.asked(ALIKE, of=TENANT_B) is CacheWord.MISS
    assert await desk.asked(ASKED, of=TENANT_B) is CacheWord.MISS
    assert await questions(desk, TENANT_B) == {}
    # Not even with the other one's partition: its keys are its own, and so are the answers' names in them.
    ((name, packed),) = (await questions(desk)).items()
    (key,) = [key async for key in desk.gateway.redis.scan_iter(redis_keys.kept_alike_prefix(TENANT_A) + "*")]
    partition = key.decode().removeprefix(redis_keys.kept_alike_prefix(TENANT_A))
    assert await desk.gateway.kept_answers.alike(TENANT_B, partition) == {}
    mine = await desk.ask(ALIKE, of=TENANT_B)
    (claimed,) = await desk.claim()
    await desk.answer(claimed, "Theirs.")
    await desk.read(mine)
    await desk.recorded()
    (theirs,) = [key async for key in desk.gateway.redis.scan_iter(redis_keys.kept_alike_prefix(TENANT_B) + "*")]
    assert theirs.decode().removeprefix(redis_keys.kept_alike_prefix(TENANT_B)) != partition
    await desk.gateway.redis.hset(theirs, name, packed)  # as if a name had got there by mistake
    assert await desk.asked("How could I reset my password?", of=TENANT_A) is CacheWord.SEMANTIC
    given = await desk.ask(ASKED, of=TENANT_B)
    assert given.cache.word is CacheWord.SEMANTIC
    assert await desk.read(given) == "Theirs."


async def test_all_but_the_last_question_must_be_the_same(desk: Desk) -> None:
    await desk.keep(semantic=True, semantic_max_turns=2)
    turns = [ChatTurn("system", "Be brief."), ChatTurn("user", "Hello there."), ChatTurn("assistant", "Good day.")]
    await desk.computed(ASKED, before=turns)
    for index, content in enumerate(("Be long.", "Hello here.", "Good night.")):
        others = list(turns)
        others[index] = ChatTurn(turns[index].role, content)
        assert await desk.asked(ALIKE, before=others) is CacheWord.MISS, content
    assert await desk.asked(ALIKE) is CacheWord.MISS
    for change in ({"max_tokens": 9}, {"presence_penalty": 0.5}, {"stop": ("x",)}, {"temperature": 0.7}):
        other = msgspec.structs.replace(GREEDY, **change)
        controls = CacheControls(use_cache=True)
        assert await desk.asked(ALIKE, before=turns, sampling=other, controls=controls) is CacheWord.MISS, change
    assert await desk.asked(ALIKE, before=turns) is CacheWord.SEMANTIC


async def test_another_revision_or_guardrail_or_a_purge_makes_it_miss(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.computed(ASKED)
    changes: Sequence[dict[str, Any]] = ({"model": "another"}, {"engine_args": {"answer_tokens": 3}}, {"id": "anew"})
    for change in changes:
        await desk.configure(deployments=[simulated("sim", **change)])
        assert await desk.asked(ALIKE) is CacheWord.MISS, change
    await desk.configure(deployments=[simulated("sim")])
    with monkeypatch.context() as patch:
        patch.setitem(desk.gateway.fleet._fingerprints, "sim", "another chat template")
        assert await desk.asked(ALIKE) is CacheWord.MISS
    policy = GuardPolicy(key="p", name="first", version=1, rules=(LiteralRule(key="r", words=("secret",)),))
    await desk.configure(guardrails=await attached(desk.gateway, policy))
    assert await desk.asked(ALIKE) is CacheWord.MISS
    await desk.configure(guardrails=[])
    assert await desk.asked(ALIKE) is CacheWord.SEMANTIC
    await desk.keep(semantic=True, generation=1)
    assert await desk.asked(ALIKE) is CacheWord.MISS


async def test_who_is_not_given_another_questions_answer(desk: Desk) -> None:
    await desk.computed(ASKED)
    exact = CacheControls(semantic=False)
    assert await desk.asked(ALIKE, controls=exact) is CacheWord.MISS
    assert await desk.asked(ALIKE, controls=CacheControls(is_personal=True)) is CacheWord.BYPASS
    assert await desk.asked("How can I reset anna@example.org?") is CacheWord.BYPASS
    assert await desk.asked(ALIKE, sampling=SamplingParams(max_tokens=8, temperature=0.7)) is CacheWord.BYPASS
    before = [ChatTurn("user", "Hello there."), ChatTurn("assistant", "Good day.")]
    await desk.computed(ASKED, before=before)
    assert await desk.asked(ALIKE, before=before) is CacheWord.MISS, "the conversation is too long"
    assert len(await questions(desk)) == 1
    await desk.keep(semantic=False)
    assert await desk.asked(ALIKE) is CacheWord.MISS
    await desk.keep(semantic=True, semantic_threshold=0.999)
    assert await desk.asked(ALIKE) is CacheWord.MISS
    await desk.keep(semantic=True, semantic_threshold=0.97, semantic_same_words=False)
    assert await desk.asked("How to reset my password?") is CacheWord.SEMANTIC


async def test_where_a_worker_judges_the_request_nobody_is_given_the_answer_to_another_one(desk: Desk) -> None:
    rule = LanguageRule(key="r", applies_to=Direction.INPUT, allowed=("en",))
    judged = GuardPolicy(key="p", name="judged", version=1, failure_mode=FailureMode.CLOSED, rules=(rule,))
    await desk.configure(guardrails=await attached(desk.gateway, judged))
    await desk.computed(ASKED)
    assert await desk.asked(ASKED) is CacheWord.HIT
    assert await desk.asked(ALIKE) is CacheWord.MISS
    assert await questions(desk) == {}


async def test_the_web_chat_is_given_the_same_questions_answer_only(desk: Desk) -> None:
    await desk.keep(semantic=True, include_chat=True)
    await desk.computed(ASKED, stream_id=new_stream_id())
    assert await questions(desk) == {}
    await desk.computed("Where is my order?", controls=CacheControls(use_cache=True))
    chatted = await desk.ask("Where is the my order?", stream_id=new_stream_id())
    assert chatted.cache.word is CacheWord.MISS
    chatted.subscription.close()


async def test_age_and_what_a_request_says_of_it(desk: Desk) -> None:
    await desk.computed(ASKED)
    await age(desk, 50)
    assert await desk.asked(ALIKE, controls=CacheControls(max_age_seconds=49)) is CacheWord.MISS
    assert await desk.asked(ALIKE, controls=CacheControls(max_age_seconds=170)) is CacheWord.SEMANTIC
    assert await desk.asked(ALIKE, controls=CacheControls(no_cache=True)) is CacheWord.MISS
    await age(desk, 1800)
    assert await desk.asked(ALIKE) is CacheWord.MISS, "it is older than the policy allows"
    await desk.computed(ASKED, controls=CacheControls(no_cache=True))
    assert await desk.asked(ALIKE) is CacheWord.SEMANTIC, "what was computed anew is found, too"
    started = await desk.ask("Where is my order?", controls=CacheControls(no_store=True))
    (claimed,) = await desk.claim()
    await desk.answer(claimed)
    await desk.read(started)
    assert len(await questions(desk)) == 1
    (name,) = await questions(desk)
    await desk.gateway.redis.delete(redis_keys.kept_answer_prefix(TENANT_A) + name)
    assert await desk.asked(ALIKE) is CacheWord.MISS, "a question whose answer has ended leads nowhere"


async def test_the_question_is_on_the_streams_record_no_longer_than_needed(desk: Desk) -> None:
    started = await desk.computed(ASKED)
    order: Reply = await desk.gateway.redis.hget(redis_keys.stream_key(started.stream_id), "keep")
    ((_, packed),) = (await questions(desk)).items()
    assert len(order) < len(packed)
    assert packed not in order


async def test_one_that_is_late_or_lost_is_a_miss(desk: Desk) -> None:
    await desk.computed(ASKED)
    await desk.gateway.likenesses.warmed()
    (pid,) = desk.gateway.likenesses._pool.pids
    pool = desk.gateway.likenesses._pool
    pool._settings = msgspec.structs.replace(pool._settings, hang_seconds=PATIENT)  # it is not replaced meanwhile
    os.kill(pid, signal.SIGSTOP)  # it hangs, and nobody waits for it
    desk.gateway.likenesses._budget = 0.05
    try:
        started = await desk.computed("How could I reset my password?")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert started.cache.word is CacheWord.MISS
    assert len(await questions(desk)) == 1, "its answer is kept for the same request only"
    os.kill(pid, signal.SIGKILL)
    desk.gateway.likenesses._budget = PATIENT
    while (word := await desk.asked(ALIKE)) is CacheWord.MISS:  # the one that finds the child gone
        await pool.compare(Comparison("Is it there?"), deadline_seconds=PATIENT)
    assert word is CacheWord.SEMANTIC


async def test_nothing_is_started_where_no_policy_wants_it(desk: Desk, redis_url: str) -> None:
    other = Gateway(redis_url=redis_url, secret_key="test")
    await desk.keep()
    await other.start()
    try:
        await desk.ask(ASKED, gateway=other)
        assert other.likenesses._warming is None
        assert other.likenesses._pool.pids == []
    finally:
        await other.stop()
