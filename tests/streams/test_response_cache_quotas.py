"""What answers from the response cache count in quotas, and the room that they take."""

import time
from typing import Any

import pytest

from apps.streams import response_metrics as metrics
from apps.streams.services import (
    CacheWord,
)
from headrace_wire import redis_keys
from headrace_wire.errors import InsufficientQuotaError, RateLimitError
from headrace_wire.functions import Reply
from headrace_wire.snapshot import BudgetDuration, QuotaConfig, QuotaScope
from tests.support.snapshots import TENANT_A, simulated

from .answers_desk import Desk


def limited(**limits: Any) -> list[QuotaConfig]:
    return [QuotaConfig(id="q", scope=QuotaScope.TENANT, tenant_id=TENANT_A, **limits)]


async def test_a_hit_counts_as_a_request_where_the_policy_says_so(desk: Desk) -> None:
    await desk.configure(quotas=limited(rpm_limit=2))
    await desk.computed()
    assert await desk.asked() is CacheWord.HIT
    with pytest.raises(RateLimitError):
        await desk.ask()
    await desk.keep(count_requests=False)
    assert await desk.asked() is CacheWord.HIT


async def test_a_hits_tokens_count_and_are_charged_where_the_policy_says_so(desk: Desk) -> None:
    priced = simulated("sim", prompt_price=10_000_000, cached_price=1_000_000, completion_price=20_000_000)
    await desk.keep(count_tokens=True)
    await desk.configure(deployments=[priced], quotas=limited(tpm_limit=60))
    began = time.monotonic()
    await desk.computed()
    assert await desk.asked() is CacheWord.HIT
    hit = (await desk.ledger())[-1]
    assert (hit.prompt_tokens, hit.cached_tokens, hit.completion_tokens) == (7, 7, 5)
    assert hit.cost_micros == 7 * 1 + 5 * 20
    left: Reply = await desk.gateway.redis.hget(redis_keys.bucket_key("q"), "tpm")
    back = time.monotonic() - began  # a token comes back each second
    assert 60 - 12 - 12 - 0.01 <= float(left) <= 60 - 12 - 12 + back + 0.01


async def test_a_hit_whose_tokens_do_not_fit_is_refused_and_books_nothing(desk: Desk) -> None:
    await desk.keep(count_tokens=True)
    await desk.computed()
    rows = len(await desk.ledger())
    await desk.configure(quotas=limited(token_budget=11, budget_duration=BudgetDuration.DAY))
    with pytest.raises(InsufficientQuotaError):
        await desk.ask()
    assert len(await desk.ledger()) == rows
    await desk.configure(quotas=limited(token_budget=12, budget_duration=BudgetDuration.DAY))
    assert await desk.asked() is CacheWord.HIT


async def test_a_room_that_becomes_nearly_full_is_told_once(desk: Desk) -> None:
    before = metrics.ALARMS._value.get()
    await desk.keep(max_bytes=3000)
    for number in range(8):
        await desk.computed(f"Question {number}?", answer=f"Answer {number}.")
    assert metrics.ALARMS._value.get() == before + 1
    assert await desk.asked("Question 0?") is CacheWord.MISS, "it was used longest ago"
    started = await desk.ask("Question 7?")
    assert await desk.read(started) == "Answer 7."
    assert started.cache.word is CacheWord.HIT
