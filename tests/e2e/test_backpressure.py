"""A slow reader stops its own engine request and nothing else. Simulated engine; `test_api_engine` has the real one."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from headrace_wire.messages import StreamState
from tests.support.live_stack import LiveStack, running_stack
from tests.support.processes import Process, free_port
from tests.support.stream_probe import StreamProbe

ASK: Any = [{"role": "user", "content": "Say something."}]
WINDOW = 512
FAST = {"engine_args": {"ttft_ms": 2, "tpot_ms": 1}, "max_model_len": 16_384, "max_num_seqs": 64}
SSE_BUFFERS = 1200
"""Tokens that the buffers of one plain SSE connection may hold beyond the window (docs/websocket.md)."""


@pytest.fixture(scope="module")
def stack() -> Iterator[LiveStack]:
    with (
        tempfile.TemporaryDirectory(prefix="headrace-slow-") as folder,
        running_stack(Path(folder), {"fast": FAST}) as stack,
    ):
        yield stack


@pytest.fixture(autouse=True)
def _logs_of_failures(request: pytest.FixtureRequest, stack: LiveStack) -> Iterator[None]:
    yield
    request.node.add_report_section("teardown", "live stack", stack.log[-20_000:])


@pytest.fixture
def probe(stack: LiveStack) -> StreamProbe:
    return StreamProbe(stack.redis_url)


def opened(stack: LiveStack, **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    return connect(stack.ws_url, subprotocols=["headrace.v1"], additional_headers=headers, **options)  # type: ignore[list-item]


async def generate(connection: ClientConnection, tokens: int, **fields: Any) -> str:
    """Start a stream; return its id."""
    frame = {"type": "generate", "model": "fast", "messages": ASK, "max_tokens": tokens, "ignore_eos": True}
    await connection.send(json.dumps({**frame, **fields}))
    return str(json.loads(await asyncio.wait_for(connection.recv(), 20))["stream_id"])


async def hear(connection: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(await asyncio.wait_for(connection.recv(), 20))
    return frame


async def read_on(connection: ClientConnection, stream_id: str) -> tuple[str, int]:
    """Read to the end, acknowledging everything; return the text and the last position."""
    text, seq = "", 0
    while True:
        frame = await hear(connection)
        if frame["type"] == "delta":
            assert frame["seq"] > seq
            text, seq = text + frame["text"], frame["seq"]
            await connection.send(json.dumps({"type": "ack", "stream_id": stream_id, "seq": seq}))
        elif frame["type"] == "end":
            return text, seq


async def test_an_engine_stops_at_the_window_and_goes_on_with_acknowledgements(
    stack: LiveStack, probe: StreamProbe
) -> None:
    async with opened(stack) as connection:
        stream_id = await generate(connection, 3000)
        held = await asyncio.to_thread(probe.wait_for_tokens, stream_id, WINDOW)
        assert held == WINDOW
        text, seq = await read_on(connection, stream_id)
    assert seq == 3000
    assert text == probe.text(stream_id)


async def test_a_window_may_be_asked_smaller_but_not_larger(stack: LiveStack, probe: StreamProbe) -> None:
    async with opened(stack) as one, opened(stack) as other:
        small = await generate(one, 2000, window=64)
        large = await generate(other, 2000, window=100_000)
        assert await asyncio.to_thread(probe.wait_for_tokens, small, 64) == 64
        assert await asyncio.to_thread(probe.wait_for_tokens, large, WINDOW) == WINDOW


async def test_a_client_that_asked_is_told_that_it_is_slow(stack: LiveStack) -> None:
    async with opened(stack) as connection:
        stream_id = await generate(connection, 500, window=32, notices=True)
        while (frame := await hear(connection))["type"] != "slow_consumer":
            assert frame["type"] in ("started", "delta")
        assert (frame["seq"], frame["acknowledged"]) == (32, 0)
        await connection.send(json.dumps({"type": "cancel", "stream_id": stream_id}))


async def test_fifty_clients_that_never_read_cost_the_gateway_nothing(stack: LiveStack, probe: StreamProbe) -> None:
    gateway = psutil.Process(stack.gateway_pid)
    async with asyncio.TaskGroup() as group:
        warm = [group.create_task(_stalled(stack)) for _ in range(5)]
    before = gateway.memory_info().rss
    async with asyncio.TaskGroup() as group:
        stalled = [group.create_task(_stalled(stack)) for _ in range(50)]
    connections = [task.result() for task in stalled]
    for _, stream_id in connections:
        assert await asyncio.to_thread(probe.wait_for_tokens, stream_id, WINDOW) == WINDOW
    async with opened(stack) as neighbour:
        stream_id = await generate(neighbour, 200)
        _, seq = await read_on(neighbour, stream_id)
        assert seq == 200
    grown = gateway.memory_info().rss - before
    for connection, _ in [*connections, *(task.result() for task in warm)]:
        await connection.close()
    assert grown <= 5 * 2**20, f"{grown / 2**20:.1f} MiB for 50 stalled clients"


async def _stalled(stack: LiveStack) -> tuple[ClientConnection, str]:
    """Open a connection whose client reads one frame and then nothing."""
    connection = await opened(stack, max_queue=1)
    return connection, await generate(connection, 4000)


def test_plain_sse_is_bounded_by_window_and_buffers(stack: LiveStack, probe: StreamProbe) -> None:
    before = probe.stream_ids()
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        raw.connect(("127.0.0.1", int(stack.base_url.rsplit(":", 1)[1])))
        body = json.dumps({"model": "fast", "messages": ASK, "max_tokens": 6000, "stream": True, "ignore_eos": True})
        raw.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.api_key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        stream_id = probe.wait_for_new_stream(before)
        held = probe.wait_until_still(stream_id)
        assert WINDOW <= held <= WINDOW + SSE_BUFFERS
        received = b""
        while b"[DONE]" not in received:
            received += raw.recv(65536)
    assert probe.wait_for_end(stream_id).usage.completion_tokens == 6000


async def test_cancel_and_disconnect_act_at_once_while_the_transport_is_full(
    stack: LiveStack, probe: StreamProbe
) -> None:
    connection, stream_id = await _stalled(stack)
    await asyncio.to_thread(probe.wait_for_tokens, stream_id, WINDOW)
    began = time.monotonic()
    await connection.send(json.dumps({"type": "cancel", "stream_id": stream_id}))
    ended = await asyncio.to_thread(probe.wait_for_end, stream_id)
    assert ended.state is StreamState.CANCELLED
    # 100 ms is what is promised; the rest is for a loaded test machine.
    assert time.monotonic() - began < 1.0
    await connection.close()


async def test_two_viewers_the_frozen_one_holds_nobody_up(stack: LiveStack, probe: StreamProbe) -> None:
    frozen, stream_id = await _stalled(stack)
    async with opened(stack) as viewer:
        await viewer.send(json.dumps({"type": "resume", "stream_id": stream_id, "after": 0}))
        text, seq = await read_on(viewer, stream_id)
    assert seq == 4000
    assert text == probe.text(stream_id)
    await frozen.close()


async def test_a_flood_of_frames_grows_nothing_and_disturbs_nobody(stack: LiveStack) -> None:
    gateway = psutil.Process(stack.gateway_pid)
    async with opened(stack) as flooder, opened(stack) as neighbour:
        before = gateway.memory_info().rss
        flooding = asyncio.create_task(_flood(flooder))
        for _ in range(5):
            stream_id = await generate(neighbour, 50)
            _, seq = await read_on(neighbour, stream_id)
            assert seq == 50
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        assert gateway.memory_info().rss - before <= 5 * 2**20
    async with opened(stack) as big:
        await big.send("x" * 10_000_000)
        with pytest.raises(ConnectionClosed):
            await hear(big)


async def _flood(connection: ClientConnection) -> None:
    while True:
        await connection.send('{"type":"dance"}')


STOPPED_CLIENT = """
import json, sys
from websockets.sync.client import connect
url, key = sys.argv[1:3]
with connect(url, subprotocols=["headrace.v1"], additional_headers={"Authorization": f"Bearer {key}"}) as socket:
    frame = {"type": "generate", "model": "fast", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3000,
             "ignore_eos": True}
    socket.send(json.dumps(frame))
    seq = 0
    for message in socket:
        frame = json.loads(message)
        if frame["type"] == "queued":
            print("stream", frame["stream_id"], flush=True)
        elif frame["type"] == "delta":
            assert frame["seq"] > seq
            seq = frame["seq"]
            socket.send(json.dumps({"type": "ack", "stream_id": frame["stream_id"], "seq": seq}))
        elif frame["type"] == "end":
            print("end", seq, flush=True)
            break
"""


def test_a_stopped_client_is_slow_not_dead(stack: LiveStack, probe: StreamProbe, tmp_path: Path) -> None:
    port = free_port()
    # As by default, the timeout is a few intervals; both are scaled down.
    pings = ("--ping-interval-seconds", "0.5", "--ping-timeout-seconds", "20")
    gateway = stack.start_gateway(port, *pings)
    script = tmp_path / "client.py"
    script.write_text(STOPPED_CLIENT)
    with Process([sys.executable, script, f"ws://127.0.0.1:{port}/v1/ws", stack.api_key], name="client") as client:
        stream_id = client.wait_for_line(r"stream (\S+)").group(1)
        os.kill(client.pid, signal.SIGSTOP)
        held = probe.wait_until_still(stream_id, seconds=2.5)  # five ping periods
        assert held < 3000
        os.kill(client.pid, signal.SIGCONT)
        assert client.wait_for_line(r"end (\d+)").group(1) == "3000"
    gateway.stop()
