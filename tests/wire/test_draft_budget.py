"""What tenants may have computed for drafts: one decision for all gateways, all or nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.draft_budget import DraftBudget, DraftDecision, DraftVerdict
from headrace_wire.functions import Functions

TENANT = "a" * 32


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator["Redis"]:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield redis


@pytest.fixture
def budget(redis: "Redis") -> DraftBudget:
    return DraftBudget(redis, Functions(redis))


async def take(
    budget: DraftBudget, prefill_id: str, tokens: int = 100, *, tenant: str = TENANT, replaces: str = "", most: int = 4
) -> DraftDecision:
    return await budget.take(
        tenant,
        tokens=tokens,
        tokens_per_minute=1000,
        most_in_flight=most,
        prefill_id=prefill_id,
        replaces=replaces,
        life_seconds=60,
    )


async def test_tokens_of_a_minute_are_shared_and_a_refusal_counts_nothing(budget: DraftBudget) -> None:
    decisions = await asyncio.gather(*(take(budget, f"p{n}", 300, most=99) for n in range(10)))
    assert [decision.verdict for decision in decisions].count(DraftVerdict.OK) == 3
    refused = next(decision for decision in decisions if decision.verdict is not DraftVerdict.OK)
    assert refused.verdict is DraftVerdict.BUDGET
    # 300 tokens, of which nearly 100 are left: 200 of 1,000 a minute.
    assert 0 < refused.retry_after_seconds <= 12
    assert (await take(budget, "small", 50, most=99)).verdict is DraftVerdict.OK
    assert (await take(budget, "p", 300, tenant="b" * 32)).verdict is DraftVerdict.OK, "another tenant has its own"


async def test_what_never_fits_is_refused_with_a_finite_time(budget: DraftBudget) -> None:
    await take(budget, "p", 1000)
    refused = await take(budget, "huge", 5000)
    assert refused.verdict is DraftVerdict.BUDGET
    assert 0 < refused.retry_after_seconds <= 60


async def test_so_many_are_computed_at_once(budget: DraftBudget, redis: "Redis") -> None:
    for number in range(4):
        assert (await take(budget, f"p{number}")).verdict is DraftVerdict.OK
    refused = await take(budget, "p4")
    assert refused.verdict is DraftVerdict.CROWDED
    assert 0 < refused.retry_after_seconds <= 60
    assert (await take(budget, "p5", replaces="p0")).verdict is DraftVerdict.OK, "its own place"
    await budget.release(TENANT, "p1")
    assert (await take(budget, "p6")).verdict is DraftVerdict.OK
    # A gateway that died releases nothing: the place is free when the draft's life is over.
    await redis.zadd(redis_keys.drafts_key(TENANT), {"p2": 1})
    assert (await take(budget, "p7")).verdict is DraftVerdict.OK
