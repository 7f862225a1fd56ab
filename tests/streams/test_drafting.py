"""Drafts as a worker gets them: what is asked of it, in whose name, and when nothing is."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from apps.deployments.prompt_rendering import PromptRenderer
from apps.streams.config_view import Caller
from apps.streams.drafts import DraftLine, DraftOff, DraftOffReason
from apps.streams.gateway import Gateway
from apps.streams.services import draft_prefill, draft_withdraw, stream_start
from apps.streams.services.drafting import BUSY_RETRY_SECONDS, LIFE_SECONDS, MOST_IN_FLIGHT
from headrace_wire import codec, redis_keys
from headrace_wire.adapters import AdapterConfig
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.breakers import BreakerTerms
from headrace_wire.cache_salt import cache_salt
from headrace_wire.fleet import ModelAssets, TemplateProbe, WorkerInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.guard_policy import (
    Action,
    AnyRule,
    Direction,
    GuardAttachment,
    GuardPolicy,
    LiteralRule,
    PersonalDataKind,
    PersonalDataRule,
    encode_policy,
    policy_digest,
)
from headrace_wire.messages import CancelPrefill, ChatTurn, ControlMessage, Prefill, PrefillPurpose, SamplingParams
from headrace_wire.prefix_hashes import BLOCK_TOKENS, prefix_hashes
from headrace_wire.prefix_index import PrefixIndex
from headrace_wire.snapshot import ConfigSnapshot
from tests.support.snapshots import KEY_A, KEY_B, TENANT_A, TENANT_B, publish_snapshot, simulated, snapshot

from .conftest import WORKER

HISTORY = [ChatTurn("user", "What is a headrace?"), ChatTurn("assistant", "The channel to the wheel. " * 20)]
TYPED = "And where does the water go when it has done its work and leaves the mill? " * 10
CARD = "4111 1111 1111 1111"


@dataclass
class Bench:
    """A gateway, and a worker that exists by its registration and its control channel alone."""

    gateway: Gateway
    renderer: PromptRenderer
    line: DraftLine = field(default_factory=DraftLine)
    version: int = 1

    def caller(self, key: ApiKeyToken = KEY_A) -> Caller:
        return self.gateway.config.authenticate(key.reveal())

    async def draft(
        self, text: str, *, history: list[ChatTurn] = HISTORY, key: ApiKeyToken = KEY_A, line: DraftLine | None = None
    ) -> DraftOff | None:
        caller = self.caller(key)
        return await draft_prefill(
            gateway=self.gateway,
            caller=caller,
            deployment=self.gateway.config.deployment(caller, "sim"),
            conversation=[*history, ChatTurn("user", text)],
            line=line or self.line,
        )

    async def told(self, worker: str = WORKER) -> list[ControlMessage]:
        """Return what has reached a worker's control channel; its first entry only creates it."""
        rows: Reply = await self.gateway.redis.xrange(redis_keys.control_key(worker))
        return [codec.decode_control(fields[b"d"]) for _, fields in rows if fields[b"d"]]

    async def prefills(self) -> list[Prefill]:
        return [message for message in await self.told() if isinstance(message, Prefill)]

    async def texts(self) -> list[str]:
        return [self.renderer._tokenizer.decode(codec.unpack_token_ids(p.prompt_ids)) for p in await self.prefills()]

    async def register(self, worker: str = WORKER, **changes: object) -> None:
        """Have the worker say something else of itself."""
        info = WorkerInfo(
            worker, "sim", "simulated", WorkerState.READY, "here", 1, 0.0, fingerprint="f", max_model_len=4096,
            max_num_seqs=8,
        )  # fmt: skip
        info = msgspec.structs.replace(info, **changes)
        await self.gateway.redis.hset(redis_keys.workers_key(), worker, codec.encode(info))
        await self.gateway.fleet.refresh()

    async def configure(self, **changes: Any) -> None:
        """Publish the test configuration with other fields of the tenants and the deployment."""
        self.version += 1
        config = snapshot(self.version, simulated("sim", **changes.pop("deployment", {})))
        config = msgspec.structs.replace(config, guardrails=changes.pop("guardrails", []))
        tenants = [msgspec.structs.replace(tenant, **changes) for tenant in config.tenants]
        await self.publish(msgspec.structs.replace(config, tenants=tenants))

    async def publish(self, config: ConfigSnapshot) -> None:
        await publish_snapshot(self.gateway.redis, config)
        await self.gateway.config_reader.refresh()

    async def guard(self, *rules: AnyRule) -> None:
        """Have a policy applied to everything."""
        body = encode_policy(GuardPolicy(key="p", name="p", version=1, rules=rules))
        await self.gateway.redis.set(redis_keys.guard_policy_key(policy_digest(body)), body)
        await self.configure(guardrails=[GuardAttachment(digest=policy_digest(body), name="p")])


@pytest.fixture
async def bench(gateway: Gateway, tiny_model: Path) -> Bench:
    special = json.loads((tiny_model / "tokenizer_config.json").read_text())
    names = {name: text for name, text in special.items() if name.endswith("_token") and isinstance(text, str)}
    template = (tiny_model / "chat_template.jinja").read_text()
    assets = ModelAssets("f", (tiny_model / "tokenizer.json").read_bytes(), template, names, max_model_len=4096)
    renderer = PromptRenderer(assets)
    probe = TemplateProbe(tuple(HISTORY[:1]), tuple(renderer.render(HISTORY[:1])))
    assets = msgspec.structs.replace(assets, probes=(probe,))
    await gateway.redis.set(redis_keys.model_assets_key("f"), codec.encode(assets))
    bench = Bench(gateway, renderer)
    await bench.register()
    return bench


async def test_history_and_the_closed_part_are_asked_for_in_whole_blocks(bench: Bench) -> None:
    assert await bench.draft(TYPED + "and th") is None
    (prefill,) = await bench.prefills()
    ids = codec.unpack_token_ids(prefill.prompt_ids)
    sent = bench.renderer.render([*HISTORY, ChatTurn("user", TYPED + "and then it rests.")])
    assert len(ids) % BLOCK_TOKENS == 0
    assert len(sent) - 2 * BLOCK_TOKENS < len(ids) < len(sent)
    assert sent[: len(ids)] == ids
    assert prefill.tenant_id == TENANT_A
    assert prefill.cache_salt == cache_salt(bench.gateway.secret, TENANT_A)
    assert prefill.purpose is PrefillPurpose.DRAFT
    assert 0 < prefill.expires_at_ms / 1000 - time.time() <= LIFE_SECONDS


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


async def test_a_tenant_has_so_many_at_once(bench: Bench) -> None:
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


# ---- several gateways


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

    await bench.draft(TYPED)
    assert bench.gateway.is_alone
    assert not await bench.gateway.redis.exists(redis_keys.open_drafts_key(TENANT_A))
    alone = await calls(bench.gateway)
    second = Gateway(redis_url=redis_url, secret_key="test")
    await second.start()
    try:
        await bench.gateway._show()
        await bench.draft(TYPED + TYPED)
        assert await bench.gateway.redis.exists(redis_keys.open_drafts_key(TENANT_A))
        assert await calls(bench.gateway) == alone
    finally:
        await second.stop()
