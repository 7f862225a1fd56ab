"""Requests that cannot be understood try no half-open deployment, over HTTP nor over a WebSocket."""

import asyncio
import json

import pytest

from apps.api.protocol import Generate, parse_frame
from apps.api.stream_pump import StreamPump
from apps.streams import runtime
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from headrace_wire import redis_keys

from .patience import PATIENCE
from .sse_client import SseClient
from .test_breakers import SPARE, configure, fail, main, route

TOO_HOT = 5.0


async def half_open(gateway: Gateway) -> Caller:
    """Have one request that may try the deployment `main`."""
    caller = await configure(gateway, main(), SPARE)
    await fail(gateway, "main")
    await gateway.redis.hset(redis_keys.breaker_key("main"), "since", "1")
    async with asyncio.timeout(PATIENCE):
        while not (tried := route(gateway, caller)).is_try:
            await gateway.breakers.look(gateway.config.with_breaker)
    gateway.breakers.give_back(tried.deployment)
    return caller


async def test_one_over_http(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_gateway", gateway)
    caller = await half_open(gateway)
    client = SseClient(model="main", temperature=TOO_HOT)
    await client.ask()
    assert client.status == 400
    assert route(gateway, caller).is_try


async def test_one_over_a_websocket(gateway: Gateway) -> None:
    caller = await half_open(gateway)
    messages = [{"role": "user", "content": "What leads the wheel?"}]
    asked = {"type": "generate", "model": "main", "messages": messages, "temperature": TOO_HOT}
    frame = parse_frame(json.dumps(asked))
    assert isinstance(frame, Generate)
    told: list[str] = []

    async def send(text: str) -> None:
        told.append(text)

    pump = StreamPump(gateway, caller, frame, send=send, scope={}, on_stall=lambda: None, acknowledges=True)
    await pump.run()
    assert "temperature" in told[0]
    assert route(gateway, caller).is_try
