"""Static answers through a gateway: who is given what was computed once."""

import time
from typing import Any

import msgspec
import pytest

from apps.streams.gateway import Gateway
from apps.streams.services import (
    CacheControls,
    CacheWord,
    stream_attach,
    stream_leave,
)
from headrace_wire import redis_keys
from headrace_wire.guard_policy import (
    FailureMode,
    GuardPolicy,
    LanguageRule,
    LiteralRule,
)
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import (
    Delta,
    Ended,
    FinishReason,
    SamplingParams,
    Started,
    StreamState,
    Usage,
)
from headrace_wire.request_queue import Idempotency
from headrace_wire.response_cache_terms import ResponseCacheTerms, StaticRule
from headrace_wire.token_log import Append
from headrace_wire.usage_events import AnswerSource
from tests.support.snapshots import TENANT_A, TENANT_B, simulated

from .answers_desk import GREEDY, TEXT, Desk, age, attached, caller

# ---- hits


async def test_a_kept_answer_is_given_without_the_engine_and_booked_as_a_hit(desk: Desk) -> None:
    began = time.monotonic()
    first = await desk.computed()
    assert first.cache.word is CacheWord.MISS
    again = await desk.ask()
    assert again.cache.word is CacheWord.HIT
    assert again.cache.age_seconds is not None
    assert 0 <= again.cache.age_seconds <= time.monotonic() - began
    assert await desk.claim() == [], "the engine hears nothing of it"
    assert await desk.read(again) == TEXT
    computed, hit = await desk.ledger()
    assert (computed.source, computed.completion_tokens) == (AnswerSource.ENGINE, 5)
    assert (hit.source, hit.stream_id, hit.tenant_id) == (AnswerSource.CACHE, again.stream_id, TENANT_A)
    assert (hit.prompt_tokens, hit.completion_tokens, hit.cost_micros) == (0, 0, 0)
    assert (hit.api_key_id, hit.deployment_id) == (computed.api_key_id, computed.deployment_id)


async def test_a_hit_tells_its_usage(desk: Desk) -> None:
    await desk.computed()
    entries = await (await desk.ask()).subscription.next()
    assert isinstance(entries[-1], Ended)
    assert entries[-1].usage == Usage(7, 5)
    assert entries[-1].finish_reason is FinishReason.STOP


async def test_a_hit_after_the_gateway_restarted(desk: Desk, redis_url: str) -> None:
    await desk.computed()
    other = Gateway(redis_url=redis_url, secret_key="test")
    await other.start()
    try:
        again = await desk.ask(gateway=other)
        assert again.cache.word is CacheWord.HIT
        assert await desk.read(again, gateway=other) == TEXT
    finally:
        await other.stop()


async def test_a_hit_of_one_who_may_come_back_has_a_log_to_come_back_to(desk: Desk) -> None:
    await desk.computed()
    again = await desk.ask(can_return=True)
    desk.leave(again)
    subscription, deployment = await stream_attach(
        gateway=desk.gateway, caller=caller(desk.gateway), stream_id=again.stream_id, after=0
    )
    assert deployment == "sim"
    texts = [entry.text for entry in await subscription.next() if isinstance(entry, Delta)]
    assert texts == [TEXT]
    subscription.close()


async def test_a_client_that_leaves_loses_no_entry(desk: Desk) -> None:
    started = await desk.ask(can_return=True)
    (claimed,) = await desk.claim()
    await desk.write(claimed)
    stream_leave(gateway=desk.gateway, tenant=caller(desk.gateway).tenant, subscription=started.subscription)
    await desk.end(claimed)
    await desk.recorded()
    assert await desk.asked() is CacheWord.HIT


async def test_an_answer_of_64_kib_is_kept_compressed(desk: Desk) -> None:
    answer = "wheel " * 11_000
    await desk.computed(answer=answer)
    (key,) = [key async for key in desk.gateway.redis.scan_iter(redis_keys.kept_answer_prefix(TENANT_A) + "*")]
    assert await desk.gateway.redis.strlen(key) < len(answer) / 10
    assert await desk.read(await desk.ask()) == answer


async def test_greedy_requests_differ_by_nothing_that_shapes_a_draw(desk: Desk) -> None:
    await desk.computed()
    other = msgspec.structs.replace(GREEDY, seed=5, top_p=0.5, top_k=3, min_p=0.1)
    assert await desk.asked(sampling=other) is CacheWord.HIT
    penalised = msgspec.structs.replace(GREEDY, presence_penalty=0.5)
    assert await desk.asked(sampling=penalised) is CacheWord.MISS


# ---- isolation and staleness


async def test_another_tenant_is_never_given_it(desk: Desk) -> None:
    await desk.computed()
    assert await desk.asked(of=TENANT_B) is CacheWord.MISS


async def test_requests_above_temperature_0_are_not_kept_unless_they_ask_for_it(desk: Desk) -> None:
    warm = SamplingParams(max_tokens=8, temperature=0.7, seed=-1)
    assert await desk.asked(sampling=warm) is CacheWord.BYPASS
    wanted = CacheControls(use_cache=True)
    await desk.computed(sampling=warm, controls=wanted)
    assert await desk.asked(sampling=warm, controls=wanted) is CacheWord.HIT
    assert await desk.asked(sampling=warm) is CacheWord.BYPASS, "who did not ask is not given it"


async def test_a_policy_by_which_only_requests_that_ask_are_static(desk: Desk) -> None:
    await desk.keep(static=StaticRule.OPT_IN)
    assert await desk.asked() is CacheWord.BYPASS
    assert await desk.asked(controls=CacheControls(use_cache=True)) is CacheWord.MISS


@pytest.mark.parametrize(
    "change",
    [
        {"model": "another"},
        {"engine_args": {"ttft_ms": 5, "tpot_ms": 2, "answer_tokens": 3}},
        {"dtype": "float16"},
        {"quantization": "fp8"},
        {"max_model_len": 2048},
        {"default_max_tokens": 9},
        {"id": "made-again-under-the-same-name"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_another_revision_of_the_deployment_misses(desk: Desk, change: dict[str, Any]) -> None:
    await desk.computed()
    await desk.configure(deployments=[simulated("sim", **change)])
    assert await desk.asked() is CacheWord.MISS
    await desk.configure(deployments=[simulated("sim")])
    assert await desk.asked() is CacheWord.HIT


async def test_another_chat_template_misses(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.computed()
    monkeypatch.setitem(desk.gateway.fleet._fingerprints, "sim", "another")
    assert await desk.asked() is CacheWord.MISS


async def test_a_guardrail_that_came_changed_or_went_misses(desk: Desk) -> None:
    rule = LiteralRule(key="r", words=("secret",))
    first = GuardPolicy(key="p", name="first", version=1, rules=(rule,))
    changed = GuardPolicy(key="p", name="first", version=2, rules=(LiteralRule(key="r", words=("other",)),))
    await desk.computed()
    await desk.configure(guardrails=await attached(desk.gateway, first))
    assert await desk.asked() is CacheWord.MISS
    await desk.computed()
    assert await desk.asked() is CacheWord.HIT
    await desk.configure(guardrails=await attached(desk.gateway, changed))
    assert await desk.asked() is CacheWord.MISS
    await desk.configure(guardrails=[])
    assert await desk.asked() is CacheWord.HIT, "what was kept without a guardrail counts where none applies again"


async def test_nothing_is_kept_that_may_have_passed_unchecked(desk: Desk) -> None:
    rule = LanguageRule(key="r", allowed=("en",))
    opened = GuardPolicy(key="p", name="open", version=1, failure_mode=FailureMode.OPEN, rules=(rule,))
    closed = msgspec.structs.replace(opened, failure_mode=FailureMode.CLOSED)
    await desk.configure(guardrails=await attached(desk.gateway, opened))
    assert await desk.asked() is CacheWord.BYPASS
    await desk.configure(guardrails=await attached(desk.gateway, closed))
    assert await desk.asked() is CacheWord.MISS


async def test_a_policy_that_is_switched_off_gives_and_keeps_nothing(desk: Desk) -> None:
    await desk.computed()
    await desk.keep(enabled=False)
    assert await desk.asked() is CacheWord.BYPASS


async def test_a_policy_of_the_deployment_counts_before_that_for_all(desk: Desk) -> None:
    own = ResponseCacheTerms(tenant_id=TENANT_A, deployment_id="sim", enabled=False)
    await desk.configure(response_caches=[ResponseCacheTerms(tenant_id=TENANT_A), own])
    assert await desk.asked() is CacheWord.BYPASS


async def test_a_purge_makes_everything_miss_also_what_is_written_after_it(desk: Desk) -> None:
    started = await desk.ask()
    (claimed,) = await desk.claim()
    await desk.keep(generation=1)
    await desk.answer(claimed)
    await desk.read(started)
    await desk.recorded()
    assert await desk.asked() is CacheWord.MISS


async def test_an_answer_is_given_up_to_the_age_that_the_policy_says_now(desk: Desk) -> None:
    began = time.monotonic()
    await desk.computed()
    await age(desk, 1000)
    again = await desk.ask()
    assert again.cache.word is CacheWord.HIT
    assert again.cache.age_seconds is not None
    assert 1000 <= again.cache.age_seconds <= 1000 + time.monotonic() - began
    await desk.keep(ttl_seconds=900)
    assert await desk.asked() is CacheWord.MISS


async def test_an_answer_is_given_no_longer_than_the_tenant_keeps_its_streams(desk: Desk) -> None:
    await desk.computed()
    await age(desk, 120)
    tenants = [msgspec.structs.replace(tenant, retention_seconds=60) for tenant in desk.config.tenants]
    await desk.configure(tenants=tenants)
    assert await desk.asked() is CacheWord.MISS


async def test_an_entry_ends_by_itself(desk: Desk) -> None:
    await desk.keep(ttl_seconds=900)
    await desk.computed()
    (key,) = [key async for key in desk.gateway.redis.scan_iter(redis_keys.kept_answer_prefix(TENANT_A) + "*")]
    assert 780_000 < await desk.gateway.redis.pttl(key) <= 900_000


# ---- what is never kept


async def test_personal_data_in_the_request(desk: Desk) -> None:
    assert await desk.asked("Write to anna@example.org about the wheel.") is CacheWord.BYPASS


async def test_personal_data_in_the_answer(desk: Desk) -> None:
    await desk.computed(answer="Ask anna@example.org.")
    assert await desk.asked() is CacheWord.MISS


async def test_the_end_users_of_callers(desk: Desk) -> None:
    assert await desk.asked(controls=CacheControls(is_personal=True)) is CacheWord.BYPASS


async def test_requests_that_are_named_by_an_idempotency_key(desk: Desk) -> None:
    await desk.computed()
    assert await desk.asked(idempotency=Idempotency("key", "body", 1)) is CacheWord.BYPASS


@pytest.mark.parametrize(
    ("state", "finish"),
    [
        (StreamState.FAILED, FinishReason.ERROR),
        (StreamState.CANCELLED, FinishReason.ABORT),
        (StreamState.REPLACED, FinishReason.CONTENT_FILTER),
        (StreamState.FINISHED, FinishReason.CONTENT_FILTER),
    ],
)
async def test_answers_that_did_not_end_by_themselves(desk: Desk, state: StreamState, finish: FinishReason) -> None:
    started = await desk.ask()
    (claimed,) = await desk.claim()
    await desk.answer(claimed, state=state, finish=finish)
    await desk.read(started)
    await desk.recorded()
    keys = [key async for key in desk.gateway.redis.scan_iter(redis_keys.kept_answer_prefix(TENANT_A) + "*")]
    assert keys == []


async def test_answers_that_went_on_inexactly(desk: Desk) -> None:
    started = await desk.ask()
    (claimed,) = await desk.claim()
    later = claimed.epoch + 1
    await desk.write(claimed)
    await desk.gateway.token_log.append([Append(Started(claimed.stream_id, later, 5, "other", 2, is_exact=False))])
    await desk.gateway.redis.hset(redis_keys.stream_key(claimed.stream_id), "epoch", str(later))
    await desk.end(msgspec.structs.replace(claimed, epoch=later))
    await desk.read(started)
    await desk.recorded()
    keys = [key async for key in desk.gateway.redis.scan_iter(redis_keys.kept_answer_prefix(TENANT_A) + "*")]
    assert keys == []


# ---- what callers ask for


async def test_no_store_keeps_nothing_and_shares_with_nobody(desk: Desk) -> None:
    started = await desk.ask(controls=CacheControls(no_store=True))
    other = await desk.ask()
    claimed = await desk.claim()
    assert len(claimed) == 2
    for one in claimed:
        if one.stream_id == started.stream_id:
            await desk.answer(one)
        else:
            await desk.end(one, state=StreamState.CANCELLED, finish=FinishReason.ABORT)
    assert await desk.read(started) == TEXT
    await desk.read(other)
    await desk.recorded()
    assert await desk.asked() is CacheWord.MISS


async def test_no_cache_computes_anew_and_keeps_the_new_answer(desk: Desk) -> None:
    await desk.computed(answer="old")
    fresh = await desk.computed(controls=CacheControls(no_cache=True))
    assert fresh.cache.word is CacheWord.MISS
    assert await desk.asked() is CacheWord.HIT


async def test_max_age_and_ttl(desk: Desk) -> None:
    await desk.computed(controls=CacheControls(ttl_seconds=100))
    await age(desk, 50)
    assert await desk.asked(controls=CacheControls(max_age_seconds=49)) is CacheWord.MISS
    assert await desk.asked(controls=CacheControls(max_age_seconds=95)) is CacheWord.HIT
    (key,) = [key async for key in desk.gateway.redis.scan_iter(redis_keys.kept_answer_prefix(TENANT_A) + "*")]
    assert await desk.gateway.redis.pttl(key) <= 100_000


async def test_a_ttl_of_nothing_keeps_nothing(desk: Desk) -> None:
    started = await desk.ask(controls=CacheControls(ttl_seconds=0.5))
    (claimed,) = await desk.claim()
    assert not await desk.gateway.redis.hexists(redis_keys.stream_key(claimed.stream_id), "keep")
    await desk.answer(claimed)
    assert await desk.read(started) == TEXT


async def test_a_deleted_tenants_last_answer_is_not_kept(desk: Desk) -> None:
    await desk.keep()
    await desk.ask()
    (claimed,) = await desk.claim()
    tenants = [tenant for tenant in desk.config.tenants if tenant.id != TENANT_A]
    await desk.configure(tenants=tenants)
    await desk.answer(claimed)
    await desk.recorded()
    assert not await desk.gateway.redis.keys(redis_keys.kept_answer_prefix(TENANT_A) + "*")


# ---- the web chat: its streams' ids are written down before they begin

CHATTY = SamplingParams(max_tokens=8, temperature=0.7)


async def test_the_chats_answers_are_kept_where_the_policy_says_so(desk: Desk) -> None:
    await desk.keep(include_chat=True)
    first = await desk.computed(sampling=CHATTY, stream_id=new_stream_id(), can_return=True)
    assert first.cache.word is CacheWord.MISS
    named = new_stream_id()
    again = await desk.ask(sampling=CHATTY, stream_id=named, can_return=True)
    assert (again.cache.word, again.stream_id) == (CacheWord.HIT, named)
    assert await desk.read(again) == TEXT
    log = await desk.gateway.token_log.read(named)
    assert log is not None, "whoever wrote its id down reads it there"
    assert isinstance(log[-1], Ended)
    anew = await desk.ask(sampling=CHATTY, stream_id=new_stream_id(), controls=CacheControls(no_cache=True))
    assert anew.cache.word is CacheWord.MISS
    desk.leave(anew)


async def test_the_chat_has_streams_of_its_own(desk: Desk) -> None:
    await desk.keep(include_chat=True)
    running, beside = [await desk.ask(sampling=CHATTY, stream_id=new_stream_id()) for _ in range(2)]
    assert beside.cache.word is CacheWord.MISS
    assert len(await desk.claim()) == 2
    for started in (running, beside):
        started.subscription.close()


async def test_the_chats_answers_are_not_kept_where_it_does_not(desk: Desk) -> None:
    await desk.keep()
    first = await desk.ask(sampling=CHATTY, stream_id=new_stream_id())
    assert first.cache.word is CacheWord.BYPASS
    first.subscription.close()
