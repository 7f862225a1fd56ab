"""Drafts where there are several gateways: a prompt that is sent through another one than its draft is a hit, once."""

from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from apps.streams.gateway import Gateway
from apps.streams.services import stream_start
from headrace_wire import redis_keys
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.functions import Reply
from headrace_wire.messages import ChatTurn, SamplingParams
from tests.support.snapshots import KEY_A, KEY_B, TENANT_A

from .draft_bench import HISTORY, TYPED, Bench


@pytest.fixture
async def second(bench: Bench, redis_url: str) -> AsyncIterator[Gateway]:
    """Another gateway beside that of `bench`; each has seen the other."""
    second = Gateway(redis_url=redis_url, secret_key="test")
    await second.start()
    await bench.gateway._show()
    yield second
    await second.stop()


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"headrace_{name}_total", {"deployment": "sim", **labels}) or 0.0


class Counts:
    """What was counted of drafts since it was made."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[str, float]:
        outcomes = {outcome: counted("drafts_settled", outcome=outcome) for outcome in ("hit", "missed")}
        return {**outcomes, "tokens": counted("draft_tokens"), "wasted": counted("draft_tokens_wasted")}

    @property
    def since(self) -> dict[str, float]:
        return {name: value - self._before[name] for name, value in self._now().items()}


async def sent_through(gateway: Gateway, text: str, *, key: ApiKeyToken = KEY_A) -> bool:
    """Send a message through a gateway; say whether it is a hit there."""
    caller = gateway.config.authenticate(key.reveal())
    started = await stream_start(
        gateway=gateway,
        caller=caller,
        deployment=gateway.config.deployment(caller, "sim"),
        conversation=[*HISTORY, ChatTurn("user", text)],
        sampling=SamplingParams(max_tokens=4),
    )
    started.subscription.close()
    return gateway.drafts.was_hit(started.stream_id)


async def given_up(bench: Bench) -> None:
    """Let the time of the first gateway's draft be over."""
    bench.gateway.drafts.give_up(bench.line)
    await bench.gateway.drafts.settle(bench.gateway.draft_budget)


async def test_a_prompt_that_is_sent_through_another_gateway_is_a_hit_there(bench: Bench, second: Gateway) -> None:
    counts = Counts()
    await bench.draft(TYPED)
    await bench.draft(TYPED + TYPED)
    tokens = sum(len(prefill.prompt_ids) // 4 for prefill in (await bench.prefills())[-1:])
    assert not await sent_through(second, TYPED + TYPED, key=KEY_B)
    assert await sent_through(second, TYPED + TYPED + "Tell me.")
    assert not await sent_through(second, TYPED + TYPED + "Tell me.")
    assert not await sent_through(bench.gateway, TYPED + TYPED + "Tell me."), "it was taken already"
    await given_up(bench)
    assert counts.since == {"hit": 1, "missed": 0, "tokens": tokens, "wasted": 0}


async def test_the_next_draft_of_the_line_knows_that_its_former_was_sent(bench: Bench, second: Gateway) -> None:
    await bench.draft(TYPED)
    assert await sent_through(second, TYPED + "Tell me.")
    counts = Counts()
    await bench.draft("Something else. " + TYPED)
    assert counts.since["wasted"] == 0
    await bench.draft("No, wait. " + TYPED)
    assert counts.since["wasted"] > 0


async def test_what_nobody_sent_is_missed_and_wasted_once(bench: Bench, second: Gateway) -> None:
    counts = Counts()
    await bench.draft(TYPED)
    assert not await sent_through(second, "Never mind. " + TYPED)
    await given_up(bench)
    assert not await sent_through(second, TYPED + "Tell me."), "too late"
    since = counts.since
    assert (since["hit"], since["missed"]) == (0, 1)
    assert since["wasted"] == since["tokens"] > 0


async def test_its_own_gateway_takes_it_from_the_others(bench: Bench, second: Gateway) -> None:
    counts = Counts()
    await bench.draft(TYPED)
    assert await sent_through(bench.gateway, TYPED + "Tell me.")
    assert not await sent_through(second, TYPED + "Tell me.")
    assert counts.since["hit"] == 1


async def test_who_is_alone_shares_nothing_and_nothing_more_is_asked_of_redis(bench: Bench, redis_url: str) -> None:
    async def calls(gateway: Gateway) -> float:
        await gateway.redis.config_resetstat()
        await sent_through(gateway, TYPED + "Tell me.")
        stats: Reply = await gateway.redis.info("commandstats")
        return float(stats["cmdstat_fcall"]["calls"])

    async def quiet(gateway: Gateway) -> None:
        """What it does on its own, once a second, is not counted."""
        await cancel_and_wait(*gateway._tasks)

    await quiet(bench.gateway)
    await bench.draft(TYPED)
    assert bench.gateway.is_alone
    assert not await bench.gateway.redis.exists(redis_keys.open_drafts_key(TENANT_A))
    alone = await calls(bench.gateway)
    second = Gateway(redis_url=redis_url, secret_key="test")
    await second.start()
    try:
        await quiet(second)
        await bench.gateway._show()
        await bench.draft(TYPED + TYPED)
        assert await bench.gateway.redis.exists(redis_keys.open_drafts_key(TENANT_A))
        assert await calls(bench.gateway) == alone
    finally:
        await second.stop()
