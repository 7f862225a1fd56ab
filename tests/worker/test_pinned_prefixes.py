"""Prompt caches that are pinned: there before the worker is ready, and counted when requests begin with them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace_wire import codec, redis_keys
from headrace_wire.functions import Reply
from headrace_wire.messages import ChatTurn, PromptCacheUse
from headrace_wire.prefill_reports import PrefillReport
from headrace_wire.prompt_caches import PromptCacheConfig, stable_prefix
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.worker import Worker
from tests.support.snapshots import simulated, snapshot
from tests.worker.conftest import ENGINE_START_SECONDS, RunWorker, engine_deployment
from tests.worker.desk import Desk

SYSTEM = "You answer questions about the tides, in one sentence, and you name your source. " * 12


def prompt_cache(name: str, *, deployment: str = "sim", **changes: object) -> PromptCacheConfig:
    """Return a pinned prompt cache of tenant `t`."""
    cache = PromptCacheConfig(
        id=name,
        tenant_id="t",
        deployment=deployment,
        name=name,
        version=1,
        messages=(ChatTurn("system", f"{name}: {SYSTEM}"),),
        pinned=True,
        cache_salt="salt",
    )
    return replace(cache, **changes)


@asynccontextmanager
async def worker_with(
    run_worker: RunWorker, deployment: DeploymentConfig, *caches: PromptCacheConfig
) -> AsyncIterator[Worker]:
    config = replace(snapshot(1, deployment), prompt_caches=list(caches))
    # vLLM's import stands still for longer than a usual lease.
    async with run_worker(deployment, config=config, start_seconds=ENGINE_START_SECONDS, lease_seconds=60) as worker:
        yield worker


async def report_of(desk: Desk, cache_id: str) -> PrefillReport | None:
    """Return what the one worker says of a prompt cache."""
    (info,) = await desk.workers()
    raw: Reply = await desk.redis.hget(redis_keys.prefix_warmth_key(cache_id), info.incarnation)
    return codec.decode(raw, PrefillReport) if raw else None


async def test_a_ready_worker_has_computed_those_of_its_deployment(desk: Desk, run_worker: RunWorker) -> None:
    caches = [
        prompt_cache("ours"),
        prompt_cache("elsewhere", deployment="another"),
        prompt_cache("opportunistic", pinned=False),
        prompt_cache("short", messages=(ChatTurn("system", "Be terse."),)),
    ]
    async with worker_with(run_worker, simulated("sim"), *caches):
        ours = await report_of(desk, "ours")
        others = [await report_of(desk, name) for name in ("elsewhere", "opportunistic", "short")]
    assert ours is not None
    assert ours.tokens > 300
    assert others == [None, None, None]


async def test_no_more_than_half_the_memory_is_filled(desk: Desk, run_worker: RunWorker) -> None:
    async with worker_with(run_worker, simulated("sim"), prompt_cache("a"), prompt_cache("b")):
        first = await report_of(desk, "a")
        assert first is not None
        assert await report_of(desk, "b") is not None
    await desk.redis.flushall()
    await desk.queue.enlist("gateway-test", lease_seconds=600, channels=[redis_keys.delivery_key("gateway-test")])
    small = simulated(
        "sim", engine_args={"ttft_ms": 1, "tpot_ms": 1, "kv_tokens": 3 * first.tokens, "block_tokens": 32}
    )
    async with worker_with(run_worker, small, prompt_cache("a"), prompt_cache("b")):
        assert await report_of(desk, "a") is not None
        assert await report_of(desk, "b") is None


# ---- the real engine


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
async def test_the_first_request_of_a_new_worker_finds_it(desk: Desk, run_worker: RunWorker, tiny_model: Path) -> None:
    cache = prompt_cache("tides", deployment="tiny")
    async with worker_with(run_worker, engine_deployment(tiny_model), cache) as worker:
        report = await report_of(desk, "tides")
        assert report is not None
        assert (report.cached_tokens, report.computed_tokens) == (0, report.tokens)
        info = worker._host.info
        assert info is not None
        assert report.tokens == len(stable_prefix(info.renderer.render, cache.messages))
        question = [*cache.messages, ChatTurn("user", "When is high tide?")]
        use = PromptCacheUse("tides", report.tokens)
        other = await desk.answer(
            await desk.admit(question, deployment="tiny", cache_salt="of another tenant", tenant_id="u")
        )
        ours = await desk.answer(await desk.admit(question, deployment="tiny", prompt_cache=use))
        assert other.end.usage.cached_tokens == 0
        assert ours.end.usage.cached_tokens == report.tokens
        assert (await desk.workers())[0].cache_tokens > 1000
        counts = await _counts(desk, "tides")
    assert (counts["requests"], counts["hits"], counts["tokens"]) == (1, 1, report.tokens)
    assert counts["microseconds"] > 0


async def _counts(desk: Desk, cache_id: str) -> dict[str, int]:
    """Wait for the worker's next flush."""
    async with asyncio.timeout(30), desk.redis.pubsub() as channel:
        await channel.subscribe(redis_keys.fleet_channel())
        while True:
            row: Reply = await desk.redis.hgetall(redis_keys.prompt_cache_use_key(cache_id))
            if row:
                return {name.decode(): int(value) for name, value in row.items()}
            await channel.get_message(timeout=0.05)
