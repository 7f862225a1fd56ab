"""SIGTERM of a gateway under load: nobody loses a byte, sockets are told to come back, the process ends in time."""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close

from tests.support.live_stack import LiveStack
from tests.support.processes import Process, free_port
from tests.support.stream_probe import StreamProbe

ASK: Any = [{"role": "user", "content": "Say something."}]
CLIENTS = 100
"""Of each kind."""
TOKENS = 160  # of `slow`: eight seconds
JITTER_MS = 5000
"""The server's default for how far reconnects are spread."""


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
    async with asyncio.timeout(60):
        for _ in range(2 * CLIENTS):
            await started.acquire()
    began = time.monotonic()
    gateway.send_signal(signal.SIGTERM)
    answers = await asyncio.wait_for(everybody, 60)
    assert await asyncio.to_thread(gateway.wait, timeout=40) == 0
    assert time.monotonic() - began < 30, "that is the drain's deadline"
    for stream_id, text, _ in answers:
        assert text == probe.text(stream_id)
        assert probe.wait_for_end(stream_id).usage.completion_tokens == TOKENS
    told = [closed for _, _, closed in answers if closed is not None]
    assert [closed.code for closed in told] == [1012] * CLIENTS, "every WebSocket client was told to come back"
    check_spread([int(closed.reason.removeprefix("service restart; retry_after_ms=")) for closed in told])
    assert "Traceback" not in gateway.log


def check_spread(delays: list[int]) -> None:
    """In each fifth of the time there are some, and they are not the same."""
    assert max(delays) <= JITTER_MS
    fifths = Counter(delay * 5 // (JITTER_MS + 1) for delay in delays)
    assert set(fifths) == set(range(5)), fifths
    assert len(set(delays)) > CLIENTS / 2


async def _follow_ws(stack: LiveStack, port: int, started: asyncio.Semaphore) -> tuple[str, str, Close | None]:
    """Generate on the gateway at `port`; when it closes, go on at the stack's own gateway."""
    text, seq, stream_id, told = "", 0, "", None
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
                        return stream_id, text, told
            except ConnectionClosed as closed:
                told = closed.rcvd
                assert told is not None
        frame = {"type": "resume", "stream_id": stream_id, "after": seq}
    raise AssertionError(f"{stream_id} did not end; it was told {told}")


async def _follow_sse(stack: LiveStack, port: int, started: asyncio.Semaphore) -> tuple[str, str, Close | None]:
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
                more = json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                if more and not text:
                    started.release()
                text += more
            done = done or line == "data: [DONE]"
    assert done
    return answer.headers["x-headrace-stream-id"], text, None
