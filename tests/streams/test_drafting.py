"""Drafts as a worker gets them: what is asked of it, in whose name, and when nothing is."""

import time
from typing import Any

import msgspec
import pytest

from apps.streams.drafts import DraftLine, DraftOff, DraftOffReason
from apps.streams.services import draft_prefill, draft_withdraw, stream_start
from apps.streams.services.drafting import BUSY_RETRY_SECONDS, LIFE_SECONDS, MOST_IN_FLIGHT
from headrace_wire import codec, redis_keys
from headrace_wire.adapters import AdapterConfig
from headrace_wire.breakers import BreakerTerms
from headrace_wire.cache_salt import cache_salt
from headrace_wire.fleet import ModelAssets, WorkerState
from headrace_wire.guard_policy import (
    Action,
    Direction,
    LiteralRule,
    PersonalDataKind,
    PersonalDataRule,
)
from headrace_wire.messages import CancelPrefill, ChatTurn, Prefill, PrefillPurpose, SamplingParams
from headrace_wire.prefix_hashes import BLOCK_TOKENS, prefix_hashes
from headrace_wire.prefix_index import PrefixIndex
from tests.support.snapshots import KEY_B, TENANT_A, TENANT_B, simulated, snapshot

from .conftest import WORKER
from .draft_bench import HISTORY, TYPED, Bench

CARD = "4111 1111 1111 1111"


async def test_history_and_the_closed_part_are_asked_for_in_whole_blocks(bench: Bench) -> None:
    before = time.time()
    assert await bench.draft(TYPED + "and th") is None
    after = time.time()
    (prefill,) = await bench.prefills()
    ids = codec.unpack_token_ids(prefill.prompt_ids)
    sent = bench.renderer.render([*HISTORY, ChatTurn("user", TYPED + "and then it rests.")])
    assert len(ids) % BLOCK_TOKENS == 0
    assert len(sent) - 2 * BLOCK_TOKENS < len(ids) < len(sent)
    assert sent[: len(ids)] == ids
    assert prefill.tenant_id == TENANT_A
    assert prefill.cache_salt == cache_salt(bench.gateway.secret, TENANT_A)
    assert prefill.purpose is PrefillPurpose.DRAFT
    assert before - 0.01 <= prefill.expires_at_ms / 1000 - LIFE_SECONDS <= after + 0.01


async def test_each_tenant_has_its_own_salt(bench: Bench) -> None:
    await bench.draft(TYPED)
    await bench.draft(TYPED, key=KEY_B, line=DraftLine())
    ours, theirs = await bench.prefills()
    assert (ours.tenant_id, theirs.tenant_id) == (TENANT_A, TENANT_B)
    assert ours.prompt_ids == theirs.prompt_ids
    assert ours.cache_salt != theirs.cache_salt


async def test_an_edit_takes_the_former_draft_back_and_moves_the_prefix(bench: Bench) -> None:
    await bench.draft(TYPED)
    await bench.draft(TYPED + "a")  # nothing that is certain has changed
    assert len(await bench.told()) == 1
    await bench.draft(TYPED + TYPED)
    await bench.draft(TYPED[:200] + "NO! " + TYPED)
    first, cancel_first, second, cancel_second, third = await bench.told()
    assert isinstance(first, Prefill)
    assert isinstance(second, Prefill)
    assert isinstance(third, Prefill)
    assert cancel_first == CancelPrefill(first.prefill_id)
    assert cancel_second == CancelPrefill(second.prefill_id)
    assert second.prompt_ids.startswith(first.prompt_ids)
    sent = codec.pack_token_ids(
        bench.renderer.render([*HISTORY, ChatTurn("user", TYPED[:200] + "NO! " + TYPED + "...")])
    )
    assert sent.startswith(third.prompt_ids)
    assert not sent.startswith(second.prompt_ids)


async def test_sending_takes_it_back_and_finds_it(bench: Bench) -> None:
    await bench.draft(TYPED)
    await draft_withdraw(gateway=bench.gateway, line=bench.line)
    await draft_withdraw(gateway=bench.gateway, line=bench.line)
    prefill, cancel = await bench.told()
    assert isinstance(prefill, Prefill)
    assert cancel == CancelPrefill(prefill.prefill_id)
    assert not await bench.gateway.redis.exists(redis_keys.drafts_key(TENANT_A))
    caller = bench.caller()
    hits = []
    for text in (TYPED + "Tell me.", "Never mind. " + TYPED):
        started = await stream_start(
            gateway=bench.gateway,
            caller=caller,
            deployment=bench.gateway.config.deployment(caller, "sim"),
            conversation=[*HISTORY, ChatTurn("user", text)],
            sampling=SamplingParams(max_tokens=4),
        )
        started.subscription.close()
        hits.append(bench.gateway.drafts.was_hit(started.stream_id))
    assert hits == [True, False]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"draft_tokens_per_minute": 0}, DraftOffReason.DISABLED),
        ({"deployment": {"prefills_drafts": False}}, DraftOffReason.DISABLED),
        ({"draft_tokens_per_minute": 200}, DraftOffReason.BUDGET),
    ],
    ids=["tenant", "deployment", "budget"],
)
async def test_settings_turn_it_off(bench: Bench, changes: dict[str, Any], reason: DraftOffReason) -> None:
    await bench.configure(**changes)
    off = await bench.draft(TYPED)
    assert off is not None
    assert off.reason is reason
    assert (off.retry_after_seconds is None) == (reason is DraftOffReason.DISABLED)
    assert await bench.told() == []


@pytest.mark.parametrize(
    "load",
    [
        {"num_requests_waiting": 2},
        {"num_requests_running": 4},
        {"state": WorkerState.DRAINING},
        {"fingerprint": "not read yet"},
    ],
    ids=["waiting", "half full", "draining", "just started"],
)
async def test_a_worker_that_has_no_time_is_left_alone(bench: Bench, load: dict[str, Any]) -> None:
    await bench.register(**load)
    off = await bench.draft(TYPED)
    assert off == DraftOff(DraftOffReason.BUSY, BUSY_RETRY_SECONDS)
    assert await bench.told() == []
    await bench.register(num_requests_running=3, num_requests_held=1, num_requests_waiting=1)
    assert await bench.draft(TYPED) is None, "who is held takes no time, and one may be a draft"
    assert len(await bench.told()) == 1


async def test_nothing_is_computed_where_the_prompt_would_not_be_admitted(bench: Bench) -> None:
    await bench.configure(deployment={"breaker": BreakerTerms()})
    opened: dict[Any, Any] = {"state": "open", "reason": "errors", "since": str(int(time.time() * 1000))}
    await bench.gateway.redis.hset(redis_keys.breaker_key("sim"), mapping=opened)
    await bench.gateway.breakers.look(bench.gateway.config.with_breaker)
    assert await bench.draft(TYPED) == DraftOff(DraftOffReason.BUSY, BUSY_RETRY_SECONDS)
    assert await bench.told() == []


async def test_of_several_workers_the_one_that_holds_the_history_gets_it(bench: Bench) -> None:
    other, gateway = "worker-other", bench.gateway
    await gateway.queue.enlist(other, lease_seconds=60, channels=[redis_keys.control_key(other)])
    await bench.register(other)
    for name in (WORKER, other):
        await gateway.queue.renew(name, lease_seconds=60, owned=[], channels=[], serving=("sim", 8))
    ids = bench.renderer.render(HISTORY)
    hashes = prefix_hashes(cache_salt(gateway.secret, TENANT_A), "sim", ids)
    await PrefixIndex(gateway.functions).report(other, deployment="sim", lease_seconds=60, added=hashes)
    assert await bench.draft(TYPED) is None
    assert await bench.told() == []
    assert len(await bench.told(other)) == 1
    assert await bench.draft(TYPED + TYPED) is None
    assert len(await bench.told(other)) == 3, "and its drafts stay there"


async def test_a_model_that_is_rendered_in_its_workers_takes_none(bench: Bench) -> None:
    assets = ModelAssets("its own", b"", "", max_model_len=4096)
    await bench.gateway.redis.set(redis_keys.model_assets_key("its own"), codec.encode(assets))
    await bench.register(fingerprint="its own")
    assert await bench.draft(TYPED) == DraftOff(DraftOffReason.UNSUPPORTED)


async def test_what_was_computed_before_hardly_counts_again(bench: Bench) -> None:
    await bench.configure(draft_tokens_per_minute=1000)
    text = TYPED
    for _ in range(6):
        assert await bench.draft(text) is None
        text += "and on and on it goes, round and round, as mills do. " * 3
    assert len(await bench.prefills()) == 6
    off = await bench.draft("Something else. " + text, line=DraftLine())
    assert off is not None
    assert off.reason is DraftOffReason.BUDGET


async def test_a_tenant_has_so_many_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.streams.services.drafting.LIFE_SECONDS", 600.0)  # none ends meanwhile
    for number in range(MOST_IN_FLIGHT):
        assert await bench.draft(f"{number}. {TYPED}", history=[], line=DraftLine()) is None
    off = await bench.draft(TYPED, history=[], line=DraftLine())
    assert off is not None
    assert off.reason is DraftOffReason.CROWDED
    assert await bench.draft(TYPED, history=[], line=DraftLine(), key=KEY_B) is None, "others do not feel it"


@pytest.mark.parametrize("text", ["Hi", "word " * 9_000, "x" * 300_000])
async def test_too_little_and_too_much_is_passed_over(bench: Bench, text: str) -> None:
    assert await bench.draft(text, history=[]) is None
    assert await bench.told() == []


# ---- guardrails


async def test_a_blocked_draft_is_not_computed_and_nothing_is_recorded(bench: Bench) -> None:
    await bench.guard(LiteralRule(key="r", words=("open the sluice",), applies_to=Direction.INPUT, action=Action.BLOCK))
    assert await bench.draft(f"{TYPED} Open the sluice! {TYPED}") is None
    assert await bench.told() == []
    assert await bench.draft(f"{TYPED} Open the slu") is None
    (text,) = await bench.texts()
    assert TYPED[:300] in text
    assert not await bench.gateway.redis.exists(redis_keys.interventions_key())


async def test_what_is_masked_or_may_be_is_never_computed_as_it_is(bench: Bench) -> None:
    kinds = {PersonalDataKind.CREDIT_CARD: Action.MASK}
    await bench.guard(PersonalDataRule(key="r", kinds=kinds, applies_to=Direction.INPUT))
    whole = f"{TYPED} My card is {CARD}, as I said. {TYPED}"
    for words in range(BLOCK_TOKENS):  # wherever the number stands in its blocks
        await bench.draft(f"{'so ' * words}{TYPED} My card is {CARD[:-2]}", line=DraftLine(), history=[])
        await bench.gateway.redis.delete(redis_keys.drafts_key(TENANT_A))
    await bench.draft(whole)
    texts = await bench.texts()
    assert len(texts) == BLOCK_TOKENS + 1
    assert not any("4111" in text for text in texts)
    assert "as I said" in texts[-1], "what follows the mask is computed"
    caller = bench.caller()
    started = await stream_start(
        gateway=bench.gateway,
        caller=caller,
        deployment=bench.gateway.config.deployment(caller, "sim"),
        conversation=[*HISTORY, ChatTurn("user", whole)],
        sampling=SamplingParams(max_tokens=4),
    )
    started.subscription.close()
    assert bench.gateway.drafts.was_hit(started.stream_id)


async def test_the_models_draft_is_none_of_its_adapters(bench: Bench) -> None:
    named = AdapterConfig(id="t", tenant_id=TENANT_A, deployment="sim", name="tides", place="tides", revision="1" * 64)
    await bench.publish(msgspec.structs.replace(snapshot(bench.version + 1, simulated("sim")), adapters=[named]))
    caller = bench.caller()
    adapted = bench.gateway.config.deployment(caller, "sim:tides")
    conversation = [*HISTORY, ChatTurn("user", TYPED)]
    off = await draft_prefill(
        gateway=bench.gateway, caller=caller, deployment=adapted, conversation=conversation, line=DraftLine()
    )
    assert off == DraftOff(DraftOffReason.DISABLED)
    await bench.draft(TYPED)
    hits = []
    for deployment in (adapted, bench.gateway.config.deployment(caller, "sim")):
        started = await stream_start(
            gateway=bench.gateway,
            caller=caller,
            deployment=deployment,
            conversation=conversation,
            sampling=SamplingParams(max_tokens=4),
        )
        started.subscription.close()
        hits.append(bench.gateway.drafts.was_hit(started.stream_id))
    assert hits == [False, True], "its keys and values are of other weights"
