"""SIGTERM of a gateway under load: nobody loses a byte, sockets are told to come back, the process ends in time."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.support.live_stack import LiveStack
from tests.support.processes import Process, free_port
from tests.support.stream_probe import StreamProbe

ASK: Any = [{"role": "user", "content": "Say something."}]
CLIENTS = 20
TOKENS = 60  # of `slow`: three seconds


@pytest.fixture
def probe(live_stack: LiveStack) -> StreamProbe:
    return StreamProbe(live_stack.redis_url)


@pytest.fixture
def second_gateway(live_stack: LiveStack) -> Iterator[tuple[Process, int]]:
    port = free_port()
    gateway = live_stack.start_gateway(port)
    yield gateway, port
    gateway.stop()


async def test_a_drain_loses_nothing(
    live_stack: LiveStack, second_gateway: tuple[Process, int], probe: StreamProbe
) -> None:
    gateway, port = second_gateway
    started = asyncio.Semaphore(0)
    everybody = asyncio.gather(
        *[_follow_ws(live_stack, port, started) for _ in range(CLIENTS)],
        *[_follow_sse(live_stack, port, started) for _ in range(CLIENTS)],
    )
    for _ in range(2 * CLIENTS):
        await asyncio.wait_for(started.acquire(), 30)
    began = time.monotonic()
    gateway.send_signal(signal.SIGTERM)
    answers = await everybody
    assert await asyncio.to_thread(gateway.wait, timeout=40) == 0
    assert time.monotonic() - began < 40, "the drain deadline is 30 s"
    for stream_id, text, code in answers:
        assert text == probe.text(stream_id)
        assert probe.wait_for_end(stream_id).usage.completion_tokens == TOKENS
        assert code in (None, 1012)
    assert sum(code == 1012 for _, _, code in answers) == CLIENTS, "every WebSocket client was told to come back"
    assert "Traceback" not in gateway.log


async def _follow_ws(stack: LiveStack, port: int, started: asyncio.Semaphore) -> tuple[str, str, int | None]:
    """Generate on the gateway at `port`; when it closes, go on at the stack's own gateway."""
    text, seq, stream_id, code = "", 0, "", None
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    frame: dict[str, Any] = {
        "type": "generate",
        "model": "slow",
        "messages": ASK,
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    for url in (f"ws://127.0.0.1:{port}/v1/ws", stack.ws_url):
        async with connect(url, subprotocols=["headrace.v1"], additional_headers=headers) as socket:  # type: ignore[list-item]
            await socket.send(json.dumps(frame))
            try:
                async for message in socket:
                    heard = json.loads(message)
                    stream_id = heard.get("stream_id", stream_id)
                    if heard["type"] == "delta":
                        if not seq:
                            started.release()
                        assert heard["seq"] > seq
                        text, seq = text + heard["text"], heard["seq"]
                    elif heard["type"] == "end":
                        return stream_id, text, code
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd else 1006
        frame = {"type": "resume", "stream_id": stream_id, "after": seq}
    raise AssertionError(f"{stream_id} did not end; close code {code}")


async def _follow_sse(stack: LiveStack, port: int, started: asyncio.Semaphore) -> tuple[str, str, int | None]:
    body = {"model": "slow", "messages": ASK, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    headers = {"authorization": f"Bearer {stack.api_key}"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    text, done = "", False
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", url, json=body, headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                if not text:
                    started.release()
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            done = done or line == "data: [DONE]"
    assert done
    return answer.headers["x-headrace-stream-id"], text, None
