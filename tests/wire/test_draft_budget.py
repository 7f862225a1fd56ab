"""What tenants may have computed for drafts: one decision for all gateways, all or nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.draft_budget import DraftBudget, DraftDecision, DraftVerdict, Sharing, claim_of, draft_name
from headrace_wire.functions import Functions
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import GenerateRequest, SamplingParams
from headrace_wire.prefix_hashes import BLOCK_TOKENS, prefix_hashes
from headrace_wire.request_queue import RequestQueue

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


# ---- drafts that gateways share


async def share(
    budget: DraftBudget, draft: bytes, *, former: bytes = b"", tenant: str = TENANT, tokens: int = 10
) -> DraftDecision:
    return await budget.take(
        tenant,
        tokens=tokens,
        tokens_per_minute=1000,
        most_in_flight=99,
        prefill_id=draft[8:].decode(),
        replaces=former[8:].decode(),
        life_seconds=60,
        sharing=Sharing(draft, former, 60),
    )


async def claimed(redis: "Redis", claim: bytes, *, tenant: str = TENANT) -> bytes:
    """Admit a prompt and return the draft that it takes."""
    functions = Functions(redis)
    queue = RequestQueue(redis, functions)
    request = GenerateRequest(new_stream_id(), tenant, "m", SamplingParams(max_tokens=8), "salt")
    call = queue.admit_call(request, queue_limit=100, queue_timeout_seconds=60, drafts=claim)
    return queue.parse_admission(await functions.call(*call)).draft


def hashes(*blocks: int) -> list[bytes]:
    return prefix_hashes("salt", "m", [number for number in blocks for _ in range(BLOCK_TOKENS)])


def named(prefill_id: str, *blocks: int) -> bytes:
    return draft_name(hashes(*blocks)[-1], prefill_id)


async def test_a_prompt_takes_the_longest_draft_that_it_begins_with_once(budget: DraftBudget, redis: "Redis") -> None:
    short, long, other = named("p1", 1, 2), named("p2", 1, 2, 3), named("p3", 1, 9, 9)
    for draft in (short, long, other):
        await share(budget, draft)
    prompt = claim_of(hashes=hashes(1, 2, 3, 4))
    assert await claimed(redis, prompt, tenant="b" * 32) == b"", "another tenant's"
    assert await claimed(redis, b"") == b""
    assert [await claimed(redis, prompt) for _ in range(3)] == [long, short, b""]
    assert await budget.dismiss(TENANT, [short, long, other, other]) == [False, False, True, False]
    assert not await redis.exists(redis_keys.open_drafts_key(TENANT), redis_keys.open_drafts_ending_key(TENANT))


async def test_its_own_gateway_takes_it_by_name(budget: DraftBudget, redis: "Redis") -> None:
    ours, theirs = named("p1", 1, 2), named("p2", 1, 2)
    await share(budget, theirs)
    await share(budget, ours)
    assert await claimed(redis, claim_of(ours)) == ours
    assert await claimed(redis, claim_of(ours)) == b"", "another gateway was quicker"
    assert await claimed(redis, claim_of(hashes=hashes(1, 2, 3))) == theirs, "two that say the same are two"


async def test_the_next_draft_takes_its_place(budget: DraftBudget, redis: "Redis") -> None:
    first, second, third = named("p1", 1, 2), named("p2", 1, 3), named("p3", 1, 4)
    await share(budget, first)
    assert not (await share(budget, second, former=first)).is_former_sent
    refused = await share(budget, third, former=second, tokens=5000)
    assert refused.verdict is DraftVerdict.BUDGET
    assert await claimed(redis, claim_of(hashes=hashes(1, 2))) == b""
    assert await claimed(redis, claim_of(hashes=hashes(1, 3))) == second, "a refusal leaves it as it was"
    assert (await share(budget, third, former=second)).is_former_sent


async def test_a_dead_gateways_drafts_end(budget: DraftBudget, redis: "Redis") -> None:
    old, new = named("p1", 1, 2), named("p2", 1, 2)
    for draft in (old, new):
        await share(budget, draft)
    await redis.zadd(redis_keys.open_drafts_ending_key(TENANT), {old: 1})
    assert await claimed(redis, claim_of(hashes=hashes(1, 2))) == new
    assert await budget.dismiss(TENANT, [old]) == [False]
    for key in (redis_keys.open_drafts_key(TENANT), redis_keys.open_drafts_ending_key(TENANT)):
        await share(budget, new)
        assert 0 < await redis.pttl(key) <= 60_000
