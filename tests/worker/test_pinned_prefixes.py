"""Prompt caches that are pinned: there before the worker is ready, and counted when requests begin with them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from apps.deployments.prompt_rendering import build_renderer
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import ModelAssets, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.messages import ChatTurn, PromptCacheUse
from headrace_wire.prefill_reports import PrefillReport
from headrace_wire.prefix_hashes import conversation_text, prefix_hashes, text_hashes
from headrace_wire.prompt_caches import PromptCacheConfig, stable_prefix
from headrace_wire.snapshot import ConfigSnapshot, DeploymentConfig
from headrace_worker.worker import Worker
from tests.support.snapshots import publish_snapshot, simulated, snapshot
from tests.worker.conftest import RunWorker
from tests.worker.desk import WAIT_SECONDS, Desk
from tests.worker.prompts import prompt_cache


@asynccontextmanager
async def worker_with(
    run_worker: RunWorker, deployment: DeploymentConfig, *caches: PromptCacheConfig
) -> AsyncIterator[Worker]:
    config = replace(snapshot(1, deployment), prompt_caches=list(caches))
    async with run_worker(deployment, config=config) as worker:
        yield worker


async def report_of(desk: Desk, cache_id: str) -> PrefillReport | None:
    """Return what the one worker says of a prompt cache."""
    info = await desk.worker_in(WorkerState.READY)
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


async def test_each_new_worker_computes_it_before_it_is_ready(desk: Desk, run_worker: RunWorker) -> None:
    config = replace(snapshot(1, simulated("sim")), prompt_caches=[prompt_cache("ours")])
    incarnations = set()
    for _ in range(2):
        async with run_worker(simulated("sim"), config=config) as worker:
            incarnations.add(worker._lease.incarnation)
            assert await report_of(desk, "ours") is not None
    assert len(incarnations) == 2


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


async def test_one_that_is_saved_later_is_computed_by_workers_where_only_these_make_ids(
    desk: Desk, run_worker: RunWorker
) -> None:
    """Until a conversation comes, nobody knows; then each change of the configuration is a reason to look."""
    async with worker_with(run_worker, simulated("sim")):
        await publish_snapshot(desk.redis, _pinning(2, "before"))
        await desk.worker_that(lambda info: info.config_version == 2)
        await desk.answer(await desk.admit([ChatTurn("user", "Hello.")]))
        assert await report_of(desk, "before") is None
        await publish_snapshot(desk.redis, _pinning(3, "before", "after"))
        for name in ("before", "after"):
            await _until_reported(desk, name)


def _pinning(version: int, *names: str) -> ConfigSnapshot:
    return replace(snapshot(version, simulated("sim")), prompt_caches=[prompt_cache(name) for name in names])


async def _until_reported(desk: Desk, cache_id: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS), desk.redis.pubsub() as channel:
        await channel.subscribe(redis_keys.fleet_channel())
        while await report_of(desk, cache_id) is None:
            await channel.get_message(timeout=0.05)


async def test_requests_go_to_the_worker_that_has_computed_it_whoever_makes_their_ids(
    desk: Desk, run_worker: RunWorker
) -> None:
    """One was there when it was pinned, the other one came later: ids and text lead to the first one."""
    engine = {"ttft_ms": 1, "tpot_ms": 1, "block_tokens": 32, "kv_tokens": 20_000}
    deployment, cache = simulated("sim", engine_args=engine), prompt_cache("tides")
    question = [*cache.messages, ChatTurn("user", "When is high tide?")]
    async with worker_with(run_worker, deployment, cache) as holder:
        await desk.answer(await desk.admit([ChatTurn("user", "Hello.")]))  # no gateway has made its ids
        me, info = holder._lease.incarnation, holder._host.info
        assert info is not None
        ids = info.renderer.render(question)
        by_ids = prefix_hashes("salt", "sim", stable_prefix(info.renderer.render, cache.messages))
        by_text = text_hashes("salt", "sim", conversation_text(cache.messages))
        async with run_worker(deployment, config=snapshot(2, deployment)) as other:
            await desk.worker_that(
                lambda info: info.incarnation == other._lease.incarnation and info.state is WorkerState.READY
            )
            await _until_noted(desk, me, {*by_ids, *by_text})
            for _ in range(2):
                asked = [
                    await desk.admit(ids, prefix=prefix_hashes("salt", "sim", ids)),
                    await desk.admit(question, prefix=text_hashes("salt", "sim", conversation_text(question))),
                ]
                for stream_id in asked:
                    answer = await desk.answer(stream_id)
                    assert answer.starts[0].owner == me
                    assert answer.end.usage.cached_tokens >= len(by_ids) * 32


async def _until_noted(desk: Desk, incarnation: str, hashes: set[bytes]) -> None:
    async with asyncio.timeout(WAIT_SECONDS), desk.redis.pubsub() as channel:
        await channel.subscribe(redis_keys.fleet_channel())
        while True:
            noted: Reply = await desk.redis.smembers(redis_keys.held_key(incarnation))
            if hashes <= set(noted):
                return
            await channel.get_message(timeout=0.05)


# ---- the real engine


@pytest.mark.engine
async def test_the_first_request_that_begins_with_it_finds_it(engine_desk: Desk) -> None:
    cache, desk = prompt_cache("tides", "tiny"), engine_desk
    report = await report_of(desk, "tides")
    assert report is not None
    assert (report.cached_tokens, report.computed_tokens) == (0, report.tokens)
    info = await desk.worker_in(WorkerState.READY)
    raw: Reply = await desk.redis.get(redis_keys.model_assets_key(info.fingerprint))
    renderer = build_renderer(codec.decode(raw, ModelAssets))
    assert renderer is not None
    assert report.tokens == len(stable_prefix(renderer.render, cache.messages)) > 100
    question = [*cache.messages, ChatTurn("user", "When is high tide?")]
    use = PromptCacheUse("tides", report.tokens)
    foreign = await desk.admit(question, deployment="tiny", cache_salt="of another tenant", tenant_id="u")
    assert (await desk.answer(foreign)).end.usage.cached_tokens == 0
    ours = await desk.answer(await desk.admit(question, deployment="tiny", prompt_cache=use))
    assert ours.end.usage.cached_tokens == report.tokens
    counts = await _counts(desk, "tides")
    assert (counts["requests"], counts["hits"], counts["tokens"]) == (1, 1, report.tokens)
    assert counts["microseconds"] > 0


async def _counts(desk: Desk, cache_id: str) -> dict[str, int]:
    """Wait for the worker's next flush."""
    async with asyncio.timeout(WAIT_SECONDS), desk.redis.pubsub() as channel:
        await channel.subscribe(redis_keys.fleet_channel())
        while True:
            row: Reply = await desk.redis.hgetall(redis_keys.prompt_cache_use_key(cache_id))
            if row:
                return {name.decode(): int(value) for name, value in row.items()}
            await channel.get_message(timeout=0.05)
