"""Quotas through three gateways: exact however many ask at once, told as the SDKs understand it, never leaked."""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import msgspec
import openai
import pytest
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.snapshot import BudgetDuration, ConfigSnapshot, QuotaConfig, QuotaScope, TenantConfig
from headrace_wire.usage_events import usage_event
from tests.faults.members import Member
from tests.faults.stack import HOST, FaultStack, running_stack
from tests.support.snapshots import api_key, publish_snapshot, simulated, snapshot

CALLS = 50
ASK: list[Any] = [{"role": "user", "content": "hello"}]
TOKENS = 8
LONG = 200
"""Tokens; below the window, so that an answer ends though nobody reads it."""
REAPED_WITHIN_MS = 20_000
"""After a lease has ended. Gateways look every half second; a busy machine may keep them from it."""
MONTH = BudgetDuration.MONTH
CASES: dict[str, dict[str, Any]] = {
    "requests": {"rpm_limit": 1},
    "tokens": {"tpm_limit": 40},
    "token budget": {"token_budget": 40, "budget_duration": MONTH},
    "money": {"max_budget_micros": 40, "budget_duration": MONTH},
    "parallel": {"max_parallel_requests": 1},
    "minute": {"rpm_limit": 120},
    "spent": {"token_budget": 1, "budget_duration": MONTH},
}
"""Each limits a tenant of its own. A call takes some 20 prompt tokens (of 1 micro each) and up to 8 more."""


def key_of(case: str) -> ApiKeyToken:
    letter = chr(ord("a") + list(CASES).index(case))
    return ApiKeyToken(letter * 12, letter * 40)


def configuration() -> ConfigSnapshot:
    deployment = simulated("sim", prompt_price=1_000_000, completion_price=1_000_000)
    tenants = [TenantConfig(id=f"{number:032x}", slug=f"t{number}") for number, _ in enumerate(CASES)]
    return msgspec.structs.replace(
        snapshot(2, deployment),
        tenants=tenants,
        api_keys=[api_key(key_of(case), tenant.id) for case, tenant in zip(CASES, tenants, strict=True)],
        quotas=[
            QuotaConfig(id=case, scope=QuotaScope.TENANT, tenant_id=tenant.id, **limits)
            for (case, limits), tenant in zip(CASES.items(), tenants, strict=True)
        ],
    )


@pytest.fixture(scope="module")
def stack() -> Iterator[FaultStack]:
    with (
        tempfile.TemporaryDirectory(prefix="headrace-quotas-") as folder,
        running_stack(Path(folder), simulated("sim"), gateways=3, workers=1) as stack,
    ):
        asyncio.run(configure(stack))
        yield stack


async def configure(stack: FaultStack) -> None:
    """Publish, and return when every gateway has read it."""
    async with Redis.from_url(stack.redis_url) as redis, httpx.AsyncClient() as client:
        await publish_snapshot(redis, configuration())
        for port, gateway in zip(stack.ports, stack.gateways, strict=True):
            await asyncio.to_thread(gateway.process.wait_for_line, "config_read .*version=2")
            assert (await ask(client, port, "minute")).status_code == 200


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as client:
        yield client


@pytest.fixture
async def redis(stack: FaultStack) -> AsyncIterator[Redis]:
    async with Redis.from_url(stack.redis_url) as redis:
        yield redis


async def ask(client: httpx.AsyncClient, port: int, case: str, **fields: Any) -> httpx.Response:
    body = {"model": "sim", "messages": ASK, "max_tokens": TOKENS, "ignore_eos": True, **fields}
    headers = {"authorization": f"Bearer {key_of(case).reveal()}"}
    return await client.post(f"http://{HOST}:{port}/v1/chat/completions", json=body, headers=headers)


async def many(client: httpx.AsyncClient, stack: FaultStack, case: str) -> list[httpx.Response]:
    """Ask over all gateways at once, plain and streamed in turn."""
    calls = [ask(client, stack.ports[n % 3], case, stream=n % 2 == 0) for n in range(CALLS)]
    return await asyncio.gather(*calls)


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("requests", "rate_limit_exceeded"),
        ("tokens", "rate_limit_exceeded"),
        ("token budget", "insufficient_quota"),
        ("money", "insufficient_quota"),
    ],
)
async def test_of_fifty_at_three_gateways_exactly_one_passes(
    stack: FaultStack, client: httpx.AsyncClient, redis: Redis, case: str, code: str
) -> None:
    answers = await many(client, stack, case)
    assert Counter(answer.status_code for answer in answers) == {200: 1, 429: CALLS - 1}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.json()["error"]["code"] for answer in refused} == {code}
    for answer in refused:
        if code == "rate_limit_exceeded":
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        else:
            assert "retry-after" not in answer.headers
            assert answer.headers["x-should-retry"] == "false"
    period: Any = await redis.keys(f"{redis_keys.budget_prefix()}{case}:*")
    for key in period:
        used: Any = await redis.hmget(key, ["tokens", "micros"])
        assert int(used[0]) <= 40
        assert int(used[1]) <= 40


async def test_parallel_requests_wait_for_each_other_and_all_are_served(
    stack: FaultStack, client: httpx.AsyncClient, redis: Redis
) -> None:
    most, slots = 0, redis_keys.slots_key("parallel")
    asking = asyncio.ensure_future(many(client, stack, "parallel"))
    while not asking.done():
        most = max(most, int(await redis.scard(slots)))
        await asyncio.wait({asking}, timeout=0.002)
    assert {answer.status_code for answer in await asking} == {200}
    assert most == 1
    assert await redis.scard(slots) == 0


async def test_headers_tell_what_is_left(stack: FaultStack, client: httpx.AsyncClient) -> None:
    first, second = [await ask(client, stack.ports[0], "minute") for _ in range(2)]
    assert first.headers["x-ratelimit-limit-requests"] == "120"
    left = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in (first, second)]
    assert 0 <= left[1] < 120
    assert left[0] - left[1] <= 1
    assert first.headers["x-ratelimit-reset-requests"].endswith(("ms", "s"))
    assert "x-ratelimit-limit-tokens" not in first.headers


class Counting(httpx2.HTTPTransport):
    """Counts what the SDK sends."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        return super().handle_request(request)


def sdk(stack: FaultStack, case: str, transport: Counting) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"http://{HOST}:{stack.ports[0]}/v1",
        api_key=key_of(case).reveal(),
        http_client=httpx2.Client(transport=transport),
        max_retries=2,
    )


async def test_the_sdk_waits_as_told_and_then_succeeds(stack: FaultStack, redis: Redis) -> None:
    transport = Counting()
    with sdk(stack, "minute", transport) as client:
        now: Any = await redis.time()
        empty: dict[Any, Any] = {"rpm": "-2", "rpm_ms": str(now[0] * 1000)}
        await redis.hset(redis_keys.bucket_key("minute"), mapping=empty)
        answer = await asyncio.to_thread(client.chat.completions.create, model="sim", messages=ASK, max_tokens=TOKENS)
    assert answer.choices[0].message.content
    assert transport.requests == 2


async def test_the_sdk_does_not_repeat_what_a_budget_refuses(stack: FaultStack) -> None:
    transport = Counting()
    with sdk(stack, "spent", transport) as client, pytest.raises(openai.RateLimitError) as refused:
        await asyncio.to_thread(client.chat.completions.create, model="sim", messages=ASK, max_tokens=TOKENS)
    assert refused.value.code == "insufficient_quota"
    assert transport.requests == 1


@pytest.mark.parametrize("victim", ["gateway", "worker"])
async def test_a_killed_process_leaks_no_slot_and_books_once(
    stack: FaultStack, client: httpx.AsyncClient, redis: Redis, victim: str
) -> None:
    await redis.delete(redis_keys.usage_key())
    member = stack.gateways[0] if victim == "gateway" else stack.workers[0]
    stream_id = await strike_in_mid_answer(stack, client, member)
    # The next of this tenant gets its slot when the first has ended, on whichever worker.
    answered = await ask(client, stack.ports[1], "parallel")
    assert answered.status_code == 200
    rows: Any = await redis.xrange(redis_keys.usage_key())
    events = {event.stream_id: event for event in (usage_event(fields) for _, fields in rows)}
    assert len(rows) == len(events) == 2
    assert events[stream_id].completion_tokens == LONG
    assert events[answered.headers["x-headrace-stream-id"]].completion_tokens == TOKENS
    assert await redis.scard(redis_keys.slots_key("parallel")) == 0


async def strike_in_mid_answer(stack: FaultStack, client: httpx.AsyncClient, member: Member) -> str:
    """Kill a process while it serves an answer, and start it again; returns the stream's id."""
    body = {"model": "sim", "messages": ASK, "max_tokens": LONG, "ignore_eos": True, "stream": True}
    headers = {"authorization": f"Bearer {key_of('parallel').reveal()}", "idempotency-key": f"kill-{member.name}"}
    url = f"http://{HOST}:{stack.ports[0]}/v1/chat/completions"
    with contextlib.suppress(httpx.TransportError):
        async with client.stream("POST", url, json=body, headers=headers) as answer:
            stream_id = answer.headers["x-headrace-stream-id"]
            async for line in answer.aiter_lines():
                if '"content"' in line and member.is_up:
                    await asyncio.to_thread(member.kill)
                    break
    if member in stack.workers:
        async with Redis.from_url(stack.redis_url) as redis:
            await slot_comes_back(redis, stream_id, *member.incarnations)
    await stack.wait_until_whole()
    return stream_id


async def slot_comes_back(redis: Redis, stream_id: str, owner: str) -> None:
    """Return when a dead owner's stream has left its slot: with the end of the lease, and not before."""
    ends: Any = await redis.zscore(redis_keys.incarnations_key(), owner)
    assert await redis.sismember(redis_keys.slots_key("parallel"), stream_id)
    while await redis.sismember(redis_keys.slots_key("parallel"), stream_id):
        assert await milliseconds(redis) < ends + REAPED_WITHIN_MS, "a slot is kept that nobody uses"
        await asyncio.sleep(0.02)
    assert await milliseconds(redis) >= ends, "it was taken while its owner might have lived"


async def milliseconds(redis: Redis) -> int:
    """Return the time by Redis' clock, which leases go by."""
    now: Any = await redis.time()
    return int(now[0]) * 1000 + int(now[1]) // 1000
