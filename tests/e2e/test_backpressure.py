"""A slow reader stops its own engine request and nothing else: on the simulated engine, and on vLLM."""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosed

from headrace_wire.messages import StreamState
from tests.support.live_stack import LiveStack, running_stack
from tests.support.slow_clients import (
    HEAR_SECONDS,
    MODEL,
    Stalled,
    acknowledge,
    ask_on,
    deaf_socket,
    drop,
    generate,
    give_up,
    hear,
    opened,
    read_on,
    sse_asked,
    stalled,
)
from tests.support.stream_probe import StreamProbe

WINDOW = 256
SSE_BUFFERS = 1200
"""Tokens that the buffers of one plain SSE connection may hold beyond the window (docs/backpressure.md)."""
GATEWAY_GROWTH_BYTES = 5 * 2**20
DELAYED = "headrace_frames_delayed_total"
SLOTS = 8
ANSWER_TOKENS = 2500
"""More than window and buffers take; the real engine needs 5 ms for each."""
CLIENTS = {"simulated": 50, "vllm": 3 * SLOTS}
"""That never read. What they cost the gateway is no matter of the engine; to vLLM, more than its slots are many."""
FAST = {"engine_args": {"ttft_ms": 2, "tpot_ms": 1}, "max_model_len": 8192, "max_num_seqs": 64}
ENGINES = ["simulated", pytest.param("vllm", marks=pytest.mark.engine)]
simulated_only = pytest.mark.parametrize("stack", ENGINES[:1], indirect=True)
vllm_only = pytest.mark.parametrize("stack", ENGINES[1:], indirect=True)


@pytest.fixture(scope="module", params=ENGINES)
def stack(request: pytest.FixtureRequest) -> Iterator[LiveStack]:
    if request.param == "vllm":
        yield request.getfixturevalue("engine_stack")
        return
    with (
        tempfile.TemporaryDirectory(prefix="headrace-slow-") as folder,
        running_stack(Path(folder), {MODEL: FAST}) as stack,
    ):
        yield stack


@pytest.fixture
def probe(stack: LiveStack) -> StreamProbe:
    return StreamProbe(stack.redis_url)


@pytest.fixture(scope="module")
def golden(stack: LiveStack) -> str:
    """The undisturbed answer to the question that all streams here ask."""
    with sse_asked(stack, ANSWER_TOKENS) as reader:
        return reader.read_to_end()


def whole(text: str) -> str:
    """Return the text without what a cut through a character leaves of it."""
    return text.rstrip("\ufffd")


async def test_an_engine_stops_at_the_window_and_goes_on_with_acknowledgements(
    stack: LiveStack, probe: StreamProbe, golden: str
) -> None:
    async with opened(stack) as connection:
        stream_id = await generate(connection, 1000)
        assert await asyncio.to_thread(probe.wait_for_tokens, stream_id, WINDOW) == WINDOW
        text, seq = await read_on(connection, stream_id)
    assert seq == 1000
    assert text == probe.text(stream_id)
    assert golden.startswith(whole(text))


def test_plain_sse_is_bounded_by_window_and_buffers(stack: LiveStack, probe: StreamProbe, golden: str) -> None:
    before = probe.stream_ids()
    with sse_asked(stack, ANSWER_TOKENS) as reader:
        stream_id = probe.wait_for_new_stream(before)
        held = probe.wait_for_tokens(stream_id, WINDOW)
        assert WINDOW <= held <= WINDOW + SSE_BUFFERS
        text = reader.read_to_end()
    assert probe.wait_for_end(stream_id).usage.completion_tokens == ANSWER_TOKENS
    assert golden.startswith(whole(text))
    print(f"{held} tokens ahead of a reader that takes nothing")


async def test_clients_that_never_read_cost_the_gateway_nothing(
    request: pytest.FixtureRequest, stack: LiveStack, probe: StreamProbe, golden: str
) -> None:
    clients = CLIENTS[request.node.callspec.params["stack"]]
    gateway = psutil.Process(stack.gateway_pid)
    warm = await asyncio.gather(*[stalled(stack, ANSWER_TOKENS) for _ in range(5)])
    before = gateway.memory_info().rss
    connections = await asyncio.gather(*[stalled(stack, ANSWER_TOKENS) for _ in range(clients)])
    await _stopped_at_the_window(probe, connections)
    async with opened(stack) as neighbour:
        stream_id = await generate(neighbour, 200)
        text, seq = await read_on(neighbour, stream_id)
        assert seq == 200
        assert golden.startswith(whole(text))
    grown = gateway.memory_info().rss - before
    for _, stream_id in connections:
        assert probe.token_count(stream_id) == WINDOW
    assert grown <= GATEWAY_GROWTH_BYTES, f"{grown / 2**20:.1f} MiB for {clients} stalled clients"
    print(f"{grown / 2**20:.1f} MiB for {clients} stalled clients")

    ends = [None, None, *[2 * WINDOW] * (clients - 2)]  # two read to the end, the others come on by one window
    texts = await asyncio.gather(
        *[read_on(*connection, until=until) for connection, until in zip(connections, ends, strict=True)]
    )
    assert [text for text, _ in texts[:2]] == [golden, golden]
    assert all(seq >= 2 * WINDOW and golden.startswith(whole(text)) for text, seq in texts)
    await give_up(stack, *warm, *connections)


@vllm_only
async def test_a_new_request_runs_at_once_where_all_slots_are_held(stack: LiveStack, probe: StreamProbe) -> None:
    prompts = [f"{number} " + "river " * 1900 for number in range(SLOTS)]
    undisturbed = [await stalled(stack, 400, prompt=prompt) for prompt in prompts]
    texts = [text for text, _ in await asyncio.gather(*[read_on(*each) for each in undisturbed])]
    connections = [await stalled(stack, 400, prompt=prompt) for prompt in prompts]
    await _stopped_at_the_window(probe, connections)
    worker = await asyncio.to_thread(probe.wait_for_worker, MODEL, lambda info: info.num_requests_held == SLOTS)
    assert worker.num_requests_running == worker.num_requests_waiting == worker.num_requests_spilled == 0
    assert worker.kv_cache_usage >= 0.85
    async with opened(stack) as newcomer:
        _, seq = await read_on(newcomer, await generate(newcomer, 100))
    assert seq == 100
    for _, stream_id in connections:
        assert probe.token_count(stream_id) == WINDOW
        assert len(probe.owners(stream_id)) == 1, "held all the time, not suspended"
    read = await asyncio.gather(*[read_on(connection, stream_id) for connection, stream_id in connections])
    assert [text for text, _ in read] == texts
    await give_up(stack, *undisturbed, *connections)


async def _stopped_at_the_window(probe: StreamProbe, connections: Sequence[Stalled]) -> None:
    streams = [stream_id for _, stream_id in connections]
    assert await asyncio.to_thread(probe.wait_for_all_tokens, streams, WINDOW) == [WINDOW] * len(streams)


@simulated_only
async def test_a_window_may_be_asked_smaller_but_not_larger(stack: LiveStack, probe: StreamProbe) -> None:
    async with opened(stack) as one, opened(stack) as other:
        small = await generate(one, 2000, window=64)
        large = await generate(other, 2000, window=100_000)
        assert await asyncio.to_thread(probe.wait_for_tokens, small, 64) == 64
        assert await asyncio.to_thread(probe.wait_for_tokens, large, WINDOW) == WINDOW
        await give_up(stack, (one, small), (other, large))


@simulated_only
async def test_a_client_that_asked_is_told_that_it_is_slow(stack: LiveStack) -> None:
    async with opened(stack) as connection:
        stream_id = await generate(connection, 500, window=32, notices=True)
        while (frame := await hear(connection))["type"] != "slow_consumer":
            assert frame["type"] in ("started", "delta")
        assert (frame["seq"], frame["acknowledged"]) == (32, 0)
        await connection.send(json.dumps({"type": "cancel", "stream_id": stream_id}))


async def test_frames_act_while_the_transport_is_full(stack: LiveStack, probe: StreamProbe) -> None:
    """Streams share a connection that takes nothing: their pumps wait in `send()`, its frames are heard.

    How soon, `test_full_transports` tells.
    """
    connection = await opened(stack, max_queue=1, sock=deaf_socket(stack))
    small = await generate(connection, ANSWER_TOKENS, window=16)
    assert await asyncio.to_thread(probe.wait_for_tokens, small, 16) == 16
    before = probe.stream_ids()
    for _ in range(SLOTS):
        await ask_on(connection, ANSWER_TOKENS)
    others = await asyncio.to_thread(probe.wait_for_new_streams, before, SLOTS)
    await asyncio.to_thread(probe.wait_for_all_tokens, others, WINDOW)
    await asyncio.to_thread(_wait_for_metric, stack, "headrace_transport_buffered_bytes")

    for each in others[:5]:
        await connection.send(json.dumps({"type": "cancel", "stream_id": each}))
        ended = await asyncio.to_thread(probe.wait_for_end, each)
        assert (ended.state, ended.usage.completion_tokens) == (StreamState.CANCELLED, WINDOW)
    await acknowledge(connection, small, 10**6)  # more than was sent counts as what was sent
    assert await asyncio.to_thread(probe.wait_for_tokens, small, 32) == 32
    await give_up(stack, *[(connection, each) for each in [small, *others]])


def test_leaving_acts_while_the_transport_is_full(stack: LiveStack, probe: StreamProbe) -> None:
    before = probe.stream_ids()
    with sse_asked(stack, ANSWER_TOKENS):
        stream_id = probe.wait_for_new_stream(before)
        held = probe.wait_for_tokens(stream_id, WINDOW)
    ended = probe.wait_for_end(stream_id)
    assert ended.state is StreamState.CANCELLED
    assert ended.usage.completion_tokens == held


@simulated_only
async def test_two_viewers_the_frozen_one_holds_nobody_up(stack: LiveStack, probe: StreamProbe) -> None:
    frozen, stream_id = await stalled(stack, 2000)
    async with opened(stack) as viewer:
        await viewer.send(json.dumps({"type": "resume", "stream_id": stream_id, "after": 0}))
        text, seq = await read_on(viewer, stream_id)
    assert seq == 2000
    assert text == probe.text(stream_id)
    await drop(frozen)


@simulated_only
async def test_to_acknowledge_each_token_is_no_flood(stack: LiveStack) -> None:
    delayed = _metric(stack, DELAYED)
    async with opened(stack) as connection:
        _, seq = await read_on(connection, await generate(connection, 2000))
    assert seq == 2000
    assert _metric(stack, DELAYED) == delayed


@simulated_only
async def test_a_flood_of_frames_grows_nothing_and_disturbs_nobody(stack: LiveStack) -> None:
    gateway, delayed = psutil.Process(stack.gateway_pid), _metric(stack, DELAYED)
    async with opened(stack) as flooder, opened(stack) as neighbour:
        before = gateway.memory_info().rss
        flooding = asyncio.create_task(_flood(flooder))
        for _ in range(5):
            stream_id = await generate(neighbour, 50)
            _, seq = await read_on(neighbour, stream_id)
            assert seq == 50
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        assert gateway.memory_info().rss - before <= GATEWAY_GROWTH_BYTES
        await drop(flooder)
    assert _metric(stack, DELAYED) > delayed
    before = gateway.memory_info().rss
    async with opened(stack) as big:
        with suppress(ConnectionClosed):
            await big.send("x" * 10_000_000)
        with pytest.raises(ConnectionClosed):
            await hear(big)
        assert big.close_code == 1009
    assert gateway.memory_info().rss - before <= GATEWAY_GROWTH_BYTES


def _metric(stack: LiveStack, name: str) -> float:
    lines = httpx.get(f"{stack.base_url}/metrics", timeout=HEAR_SECONDS).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def _wait_for_metric(stack: LiveStack, name: str) -> None:
    """Wait until it is above 0; gateways set theirs every second."""
    deadline = time.monotonic() + HEAR_SECONDS
    while not _metric(stack, name):
        assert time.monotonic() < deadline, f"{name} stays 0"
        time.sleep(0.1)


async def _flood(connection: Any) -> None:
    """Half of it are frames that mean nothing, half acknowledgements of nothing new."""
    while True:
        await connection.send('{"type":"dance"}')
        await connection.send('{"type":"ack","stream_id":"strm-x","seq":1}')
