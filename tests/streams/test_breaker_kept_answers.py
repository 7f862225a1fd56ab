"""While nobody serves a deployment, nor stands in for it, its kept answers are given all the same."""

import asyncio
import json

import msgspec
import pytest

from apps.api.protocol import Generate, parse_frame
from apps.api.stream_pump import StreamPump
from apps.streams import runtime
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.latency_book import LatencyBook
from apps.streams.latency_reading import series_of
from headrace_wire import codec, redis_keys
from headrace_wire.breakers import BreakerTerms
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.latency.measures import Tally
from headrace_wire.response_cache_terms import ResponseCacheTerms
from tests.support.snapshots import TENANT_A

from .answers_desk import TEXT, Desk
from .conftest import WORKER
from .patience import PATIENCE
from .sse_client import SseClient
from .test_breakers import SPARE, TERMS, configure, fail, main

ASKED = {"model": "main", "temperature": 0, "max_tokens": 8}
OTHER = {**ASKED, "max_tokens": 9}
NAME = f"{WORKER}-main"


async def answered(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, terms: BreakerTerms = TERMS) -> Caller:
    """Have a worker answer `ASKED`, which is kept."""
    monkeypatch.setattr(runtime, "_gateway", gateway)
    monkeypatch.setattr(gateway, "latencies", LatencyBook(gateway.functions))  # which nobody files meanwhile
    kept = [ResponseCacheTerms(tenant_id=TENANT_A)]
    caller = await configure(gateway, main(fallback=None, breaker=terms), SPARE, response_caches=kept)
    info = WorkerInfo(NAME, "main", "simulated", WorkerState.READY, "host", 1, 0.0, max_model_len=2048)
    await gateway.redis.hset(redis_keys.workers_key(), NAME, codec.encode(info))
    await gateway.fleet.refresh()
    desk, client = Desk(gateway, NAME), SseClient(**ASKED)
    asking = asyncio.create_task(client.ask())
    async with asyncio.timeout(PATIENCE):
        while not (claimed := await gateway.queue.claim(NAME, deployment="main", want=1)):
            pass
    await desk.answer(claimed[0])
    async with asyncio.timeout(PATIENCE):
        await asking
    await desk.recorded()
    return caller


@pytest.mark.parametrize("cause", ["errors", "absence"])
async def test_what_was_kept_is_given_and_the_rest_is_refused(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    terms = msgspec.structs.replace(TERMS, absent_seconds=10.0)
    caller = await answered(gateway, monkeypatch, terms)
    if cause == "errors":
        await fail(gateway, "main")
    else:
        await gateway.redis.hdel(redis_keys.workers_key(), NAME)
        await gateway.fleet.refresh()
        await gateway.redis.hset(redis_keys.breaker_key("main"), "absent", "1")
        await gateway.breakers.look(gateway.config.with_breaker)
    assert not gateway.breakers.is_closed(gateway.config.deployment(caller, "main"))
    booked = gateway.latencies.summary(series_of(caller, "main"))
    for asked, status in ((ASKED, 200), (OTHER, 503)):
        client = SseClient(**asked)
        async with asyncio.timeout(PATIENCE):
            await client.ask()
        assert client.status == status
        assert (TEXT.encode() in client.sent) == (status == 200)
    assert booked.tally(Tally.TURNED_AWAY) == 1
    assert booked.tally(Tally.ERRORS) == 1


async def test_a_websocket_is_given_it_too(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = await answered(gateway, monkeypatch)
    await fail(gateway, "main")
    asked = {"type": "generate", "messages": [{"role": "user", "content": "What leads the wheel?"}], **ASKED}
    frame = parse_frame(json.dumps(asked))
    assert isinstance(frame, Generate)
    told: list[str] = []

    async def send(text: str) -> None:
        told.append(text)

    pump = StreamPump(gateway, caller, frame, send=send, scope={}, on_stall=lambda: None, acknowledges=False)
    async with asyncio.timeout(PATIENCE):
        await pump.run()
    assert any(TEXT in text for text in told)
