"""What a gateway does while a deployment's circuit breaker is open: the fallback, or a refusal; never a detour."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.latency_book import LatencyBook
from apps.streams.latency_reading import LatencyReading, Part, series_of
from apps.streams.services import StartedStream, StreamOptions, stream_start
from apps.streams.services.routing import Route, stream_route, try_kept, try_noted
from headrace_wire import codec, redis_keys
from headrace_wire.adapters import AdapterConfig
from headrace_wire.breakers import BreakerTerms
from headrace_wire.cache_salt import cache_salt
from headrace_wire.errors import ContextLengthError, InvalidRequestError, ModelNotFoundError, ServerOverloadedError
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.latency.measures import Tally
from headrace_wire.messages import (
    ChatTurn,
    Ended,
    FinishReason,
    SamplingParams,
    StreamError,
    StreamState,
    Timings,
    Usage,
)
from headrace_wire.prompt_caches import PromptCacheConfig
from headrace_wire.response_cache_terms import ResponseCacheTerms
from headrace_wire.snapshot import DeploymentConfig
from tests.support.processes import PATIENCE_SECONDS
from tests.support.snapshots import KEY_A, TENANT_A, TENANT_B, publish_snapshot, simulated, snapshot

from .conftest import WORKER

TERMS = BreakerTerms(min_ends=4, absent_seconds=0.0, probes=1)
FAILURES = 4
PATIENCE = PATIENCE_SECONDS
QUESTION = [ChatTurn("user", "What leads the wheel?")]


def ended(code: str = "", state: StreamState = StreamState.FAILED, stream_id: str = "strm-1") -> Ended:
    error = StreamError(code, "The engine failed.") if code else None
    return Ended(stream_id, 1, 1, state, FinishReason.STOP, None, Usage(), Timings(), error)


async def configure(gateway: Gateway, *deployments: DeploymentConfig, **sections: Any) -> Caller:
    """Publish deployments, with a ready worker for each, and return a caller of tenant A."""
    config = msgspec.structs.replace(snapshot(gateway.config.version + 1, *deployments), **sections)
    await publish_snapshot(gateway.redis, config)
    await gateway.config_reader.refresh()
    for deployment in deployments:
        name = f"{WORKER}-{deployment.name}"
        if await gateway.redis.zscore(redis_keys.incarnations_key(), name) is None:
            await gateway.queue.enlist(name, lease_seconds=60, channels=[])
        info = WorkerInfo(name, deployment.name, "simulated", WorkerState.READY, "host", 1, 0.0)
        await gateway.redis.hset(redis_keys.workers_key(), name, codec.encode(info))
    await gateway.fleet.refresh()
    await gateway.breakers.look(gateway.config.with_breaker)
    return gateway.config.authenticate(KEY_A.reveal())


async def fail(gateway: Gateway, deployment: str) -> None:
    """Have its breaker open."""
    for _ in range(FAILURES):
        gateway.breakers.ended(deployment, ended("engine_error"))
    await gateway.breakers.look(gateway.config.with_breaker)


def route(gateway: Gateway, caller: Caller, model: str = "main") -> Route:
    return stream_route(gateway=gateway, caller=caller, model=model)


def main(**changes: Any) -> DeploymentConfig:
    return simulated("main", **{"breaker": TERMS, "fallback": "spare", **changes})


SPARE = simulated("spare")


async def test_requests_go_to_the_fallback_while_it_is_open_and_then_try_it(gateway: Gateway) -> None:
    caller = await configure(gateway, main(), SPARE)
    assert route(gateway, caller) == Route(gateway.config.deployment(caller, "main"))
    await fail(gateway, "main")
    diverted = route(gateway, caller)
    assert diverted.deployment.name == "spare"
    assert diverted.stands_in_for is not None
    assert diverted.stands_in_for.name == "main"
    await gateway.redis.hset(redis_keys.breaker_key("main"), "since", 1)
    async with asyncio.timeout(PATIENCE):
        while not (tried := route(gateway, caller)).is_try:
            await gateway.breakers.look(gateway.config.with_breaker)
    await gateway.breakers.look(gateway.config.with_breaker)
    assert route(gateway, caller).deployment.name == "spare", "one tries it, and no other until that one has ended"
    gateway.breakers.trying(tried.deployment, "strm-2")
    for late in (ended(state=StreamState.FINISHED), ended("engine_error")):
        gateway.breakers.ended("main", late)
        await gateway.breakers.look(gateway.config.with_breaker)
        assert route(gateway, caller).deployment.name == "spare", "that began before it opened, and says nothing"
    gateway.breakers.ended("main", ended(state=StreamState.FINISHED, stream_id="strm-2"))
    await gateway.breakers.look(gateway.config.with_breaker)
    again = route(gateway, caller)
    assert (again.deployment.name, again.is_try) == ("main", False)


async def test_a_try_that_is_refused_is_given_back(gateway: Gateway) -> None:
    caller = await configure(gateway, main(), SPARE)
    await fail(gateway, "main")
    await gateway.redis.hset(redis_keys.breaker_key("main"), "since", 1)
    async with asyncio.timeout(PATIENCE):
        while not (tried := route(gateway, caller)).is_try:
            await gateway.breakers.look(gateway.config.with_breaker)
    assert tried.deployment.name == "main"
    assert route(gateway, caller).deployment.name == "spare", "there is one"
    with pytest.raises(ContextLengthError), try_kept(gateway, tried):
        raise ContextLengthError("Too long.")
    with try_kept(gateway, route(gateway, caller)):
        assert route(gateway, caller).deployment.name == "spare", "it was one, and is used"


async def test_what_was_no_try_gives_none_back(gateway: Gateway) -> None:
    caller = await configure(gateway, main(), SPARE)
    await fail(gateway, "main")
    diverted = route(gateway, caller)
    with pytest.raises(ContextLengthError), try_kept(gateway, diverted):
        raise ContextLengthError("Too long.")
    await gateway.redis.hset(redis_keys.breaker_key("main"), "since", 1)
    async with asyncio.timeout(PATIENCE):
        while not route(gateway, caller).is_try:
            await gateway.breakers.look(gateway.config.with_breaker)
    with pytest.raises(ContextLengthError), try_kept(gateway, diverted):
        raise ContextLengthError("Too long.")
    assert route(gateway, caller).deployment.name == "spare"


async def test_a_try_that_no_worker_computes_is_given_back(gateway: Gateway) -> None:
    caller = await configure(gateway, main(), SPARE, response_caches=[ResponseCacheTerms(tenant_id=TENANT_A)])

    async def start(question: str) -> StartedStream:
        started = await stream_start(
            gateway=gateway,
            caller=caller,
            deployment=gateway.config.deployment(caller, "main"),
            conversation=[ChatTurn("user", question)],
            sampling=SamplingParams(max_tokens=4, temperature=0.0, seed=-1),
        )
        started.subscription.close()
        return started

    await start("Is it shared?")
    await fail(gateway, "main")
    await gateway.redis.hset(redis_keys.breaker_key("main"), "since", 1)
    async with asyncio.timeout(PATIENCE):
        while not (tried := route(gateway, caller)).is_try:
            await gateway.breakers.look(gateway.config.with_breaker)
    shared = await start("Is it shared?")
    assert shared.is_shared
    try_noted(gateway, tried, shared)
    again = route(gateway, caller)
    assert again.is_try, "nothing was tried yet"
    computed = await start("Is it computed?")
    try_noted(gateway, again, computed)
    assert route(gateway, caller).deployment.name == "spare", "this one tries it"
    gateway.breakers.ended("main", ended(state=StreamState.FINISHED, stream_id=computed.stream_id))
    await gateway.breakers.look(gateway.config.with_breaker)
    assert not route(gateway, caller).is_try, "it closed"


async def test_other_gateways_learn_of_it(gateway: Gateway, redis_url: str) -> None:
    caller = await configure(gateway, main(), SPARE)
    await fail(gateway, "main")
    second = Gateway(redis_url=redis_url, secret_key="test")
    await second.start()
    try:
        assert route(second, caller).deployment.name == "spare", "before its first request"
    finally:
        await second.stop()


async def test_without_a_fallback_a_request_is_refused_with_a_time(gateway: Gateway) -> None:
    caller = await configure(gateway, main(fallback=None), SPARE)
    await fail(gateway, "main")
    with pytest.raises(ServerOverloadedError, match="main") as refusal:
        route(gateway, caller)
    assert refusal.value.http_status == 503
    assert refusal.value.retry_after_seconds is not None
    assert 1 <= refusal.value.retry_after_seconds <= 30


async def test_what_it_did_is_booked_to_the_deployment_that_was_asked(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "latencies", LatencyBook(gateway.functions))  # which nobody files meanwhile
    caller = await configure(gateway, main(), SPARE)
    await fail(gateway, "main")
    for _ in range(2):
        route(gateway, caller)
    booked = gateway.latencies.summary(series_of(caller, "main"))
    assert booked.tallies == {Tally.DIVERTED: 2}
    await configure(gateway, main(fallback=None), SPARE)
    with pytest.raises(ServerOverloadedError):
        route(gateway, caller)
    assert booked.tallies == {Tally.DIVERTED: 2, Tally.TURNED_AWAY: 1, Tally.REQUESTS: 1, Tally.ERRORS: 1}


@pytest.mark.parametrize(
    "spare",
    [
        simulated("spare", visible_tenant_ids=frozenset({TENANT_B})),
        simulated("spare", active=False),
        simulated("other"),
    ],
    ids=["of another tenant", "switched off", "gone"],
)
async def test_a_fallback_that_the_caller_may_not_use_is_none(gateway: Gateway, spare: DeploymentConfig) -> None:
    caller = await configure(gateway, main(), spare)
    await fail(gateway, "main")
    with pytest.raises(ServerOverloadedError):
        route(gateway, caller)
    with pytest.raises(ModelNotFoundError):
        route(gateway, caller, "spare")


async def test_a_key_for_the_deployment_alone_does_not_get_the_fallback(gateway: Gateway) -> None:
    caller = await configure(gateway, main(), SPARE)
    assert caller.api_key is not None
    narrow = Caller(caller.tenant, api_key=msgspec.structs.replace(caller.api_key, deployment_ids=frozenset({"main"})))
    await fail(gateway, "main")
    with pytest.raises(ServerOverloadedError):
        route(gateway, narrow)


async def test_there_is_one_hop_and_no_circle(gateway: Gateway) -> None:
    third = simulated("third")
    spare = simulated("spare", breaker=TERMS, fallback="third")
    caller = await configure(gateway, main(), spare, third)
    await fail(gateway, "main")
    await fail(gateway, "spare")
    with pytest.raises(ServerOverloadedError, match="main"):
        route(gateway, caller)
    assert route(gateway, caller, "spare").deployment.name == "third"
    circle = simulated("spare", breaker=TERMS, fallback="main")
    await configure(gateway, main(), circle)
    with pytest.raises(ServerOverloadedError):
        route(gateway, caller)


async def test_other_weights_are_no_answer_to_who_asked_for_an_adapter(gateway: Gateway) -> None:
    def adapter(deployment: str, name: str) -> AdapterConfig:
        return AdapterConfig(
            id=f"{deployment}-{name}",
            tenant_id=TENANT_A,
            deployment=deployment,
            name=name,
            place="acme/tides",
            revision="a" * 64,
        )

    adapters = [adapter("main", "tides"), adapter("spare", "tides"), adapter("main", "ebb")]
    caller = await configure(gateway, main(), SPARE, adapters=adapters)
    await fail(gateway, "main")
    assert route(gateway, caller, "main:tides").deployment.public_name == "spare:tides"
    with pytest.raises(ServerOverloadedError, match="main:ebb"):
        route(gateway, caller, "main:ebb")


async def test_it_is_admitted_as_a_request_of_the_fallback_and_what_had_begun_stays(gateway: Gateway) -> None:
    caller = await configure(gateway, main(), SPARE)

    async def start() -> str:
        chosen = route(gateway, caller)
        started = await stream_start(
            gateway=gateway,
            caller=caller,
            deployment=chosen.deployment,
            conversation=QUESTION,
            sampling=SamplingParams(max_tokens=4),
            options=StreamOptions(stands_in_for=chosen.stands_in_for),
        )
        started.subscription.close()
        return started.stream_id

    before = await start()
    await fail(gateway, "main")
    after = await start()
    claimed = {
        name: [one.stream_id for one in await gateway.queue.claim(f"{WORKER}-{name}", deployment=name, want=10)]
        for name in ("main", "spare")
    }
    assert claimed == {"main": [before], "spare": [after]}


async def test_the_messages_of_the_prompt_cache_that_was_named_are_taken_along(gateway: Gateway) -> None:
    system = ChatTurn("system", "You know the tides.")
    cache = PromptCacheConfig(
        id="tides",
        tenant_id=TENANT_A,
        deployment="main",
        name="tides",
        version=1,
        messages=(system,),
        tokens=64,
        cache_salt=cache_salt(b"test", TENANT_A),
    )
    caller = await configure(gateway, main(), SPARE, prompt_caches=[cache])
    await fail(gateway, "main")
    chosen = route(gateway, caller)

    async def start(stands_in_for: DeploymentConfig | None) -> None:
        started = await stream_start(
            gateway=gateway,
            caller=caller,
            deployment=chosen.deployment,
            conversation=QUESTION,
            sampling=SamplingParams(max_tokens=4),
            options=StreamOptions(prompt_cache="tides", stands_in_for=stands_in_for),
        )
        started.subscription.close()

    await start(chosen.stands_in_for)
    (claimed,) = await gateway.queue.claim(f"{WORKER}-spare", deployment="spare", want=10)
    assert claimed.request.conversation == (system, *QUESTION)
    assert claimed.request.prompt_cache is None, "the fallback has computed nothing of it"
    with pytest.raises(InvalidRequestError, match="spare"):
        await start(None)


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        (ended("engine_error"), True),
        (ended("timeout"), True),
        (ended("internal_error"), True),
        (ended("guardrail_unavailable"), False),
        (ended("server_overloaded"), False),
        (ended("context_length_exceeded"), False),
        (ended(state=StreamState.CANCELLED), False),
        (ended(state=StreamState.FINISHED), False),
    ],
    ids=lambda value: value.error.code if isinstance(value, Ended) and value.error else "",
)
async def test_what_workers_fail_opens_it_and_nothing_else_does(gateway: Gateway, end: Ended, counts: bool) -> None:
    caller = await configure(gateway, main(), SPARE)
    for part in (Part.OWN, Part.OWN, Part.OWN, Part.OWN, Part.SHARED, Part.RETURNING):
        reading = LatencyReading(gateway.latencies, series_of(caller, "main"), part, arrived_at=time.perf_counter())
        reading.close(end, 0)
    await gateway.breakers.look(gateway.config.with_breaker)
    assert (route(gateway, caller).deployment.name == "spare") == counts


async def test_readers_of_others_streams_count_nothing(gateway: Gateway) -> None:
    caller = await configure(gateway, main(), SPARE)
    for part in (Part.SHARED, Part.RETURNING, Part.KEPT) * FAILURES:
        reading = LatencyReading(gateway.latencies, series_of(caller, "main"), part, arrived_at=time.perf_counter())
        reading.close(ended("engine_error"), 0)
    await gateway.breakers.look(gateway.config.with_breaker)
    assert route(gateway, caller).deployment.name == "main"


async def test_without_workers_it_opens_once_somebody_has_asked(gateway: Gateway) -> None:
    caller = await configure(gateway, main(breaker=BreakerTerms(absent_seconds=10.0)), SPARE)
    await gateway.redis.hdel(redis_keys.workers_key(), f"{WORKER}-main")
    await gateway.fleet.refresh()
    await gateway.breakers.look(gateway.config.with_breaker)
    assert not await gateway.redis.exists(redis_keys.breaker_key("main")), "nobody has asked"
    assert route(gateway, caller).deployment.name == "main"
    await gateway.breakers.look(gateway.config.with_breaker)
    await gateway.redis.hset(redis_keys.breaker_key("main"), "absent", 1)
    await gateway.breakers.look(gateway.config.with_breaker)
    assert route(gateway, caller).deployment.name == "spare"
    await configure(gateway, main(breaker=BreakerTerms(absent_seconds=10.0)), SPARE)
    assert route(gateway, caller).deployment.name == "main", "a worker is there again"


async def test_a_breaker_that_is_switched_off_lets_everything_in(gateway: Gateway) -> None:
    caller = await configure(gateway, main(), SPARE)
    await fail(gateway, "main")
    await configure(gateway, main(breaker=None), SPARE)
    assert route(gateway, caller).deployment.name == "main"
    await fail(gateway, "main")
    assert route(gateway, caller).deployment.name == "main"
    assert gateway.breakers.admits(gateway.config.deployment(caller, "main"))
