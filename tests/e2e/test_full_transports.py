"""Frames, requests and departures act within 100 ms while the transport is full and the pump waits for its client.

The median of `SAMPLES` is asserted: a moment in which a busy machine stands still makes no difference to it, a delay of
ours does.
"""

import asyncio
import json
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from headrace_wire.messages import Delta, StreamState
from tests.support.full_transports import (
    MEANINGLESS,
    FullTransport,
    close,
    finish,
    full_completions,
    full_events,
    full_websockets,
    reset,
    say_goodbye,
    wait_until_full,
)
from tests.support.live_stack import LiveStack, running_stack
from tests.support.long_words import long_word_model
from tests.support.slow_clients import HEAR_SECONDS, MODEL, acknowledge, ask_on, deaf_socket, drop, hear, opened
from tests.support.stream_probe import StreamProbe

pytestmark = pytest.mark.alone

ACT_SECONDS = 0.1
SAMPLES = 20
SMALL_WINDOW = 8
STEP = SMALL_WINDOW // 4
"""Credit is handed on in quarters of a window."""

Open = Callable[[LiveStack, StreamProbe, int], list[FullTransport]]
Leave = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def stack() -> Iterator[LiveStack]:
    with tempfile.TemporaryDirectory(prefix="headrace-full-") as folder:
        deployment = {
            "model": long_word_model(Path(folder) / "model"),
            "engine_args": {"ttft_ms": 2, "tpot_ms": 1},
            "max_model_len": 8192,
            "max_num_seqs": 64,
        }
        # A connection that is not given back would soon be one too many.
        tenant = {"detached_policy": "abort", "detached_grace_seconds": 0.0, "max_connections": SAMPLES + 5}
        with running_stack(Path(folder) / "state", {MODEL: deployment}, tenant=tenant) as stack:
            yield stack


@pytest.fixture
def probe(stack: LiveStack) -> StreamProbe:
    return StreamProbe(stack.redis_url)


async def test_an_acknowledgement_acts(stack: LiveStack, probe: StreamProbe) -> None:
    """Of streams on the same connection, whose own pumps wait too from their second acknowledgement on."""
    connection = await opened(stack, max_queue=1, sock=deaf_socket(stack))
    before = probe.stream_ids()
    for _ in range(SAMPLES // 4):
        await ask_on(connection, 4000, window=SMALL_WINDOW)
    taken: dict[str, int] = {}
    while list(taken.values()) != [SMALL_WINDOW] * (SAMPLES // 4):
        frame = await hear(connection)
        if frame["type"] == "delta":
            taken[frame["stream_id"]] = frame["seq"]
    assert set(taken) == probe.stream_ids() - before
    await ask_on(connection, 4000)
    filler = await asyncio.to_thread(probe.wait_for_new_stream, before | set(taken))
    await asyncio.to_thread(wait_until_full, probe, [filler])
    await connection.send(json.dumps(MEANINGLESS))  # its answer waits too

    delays = []
    for seq in range(STEP, SMALL_WINDOW + 1, STEP):
        for stream_id in taken:
            tail, asked_at = probe.tail_id(stream_id), time.monotonic()
            await acknowledge(connection, stream_id, seq)
            await asyncio.to_thread(probe.wait_for_entry, stream_id, lambda entry: isinstance(entry, Delta), after=tail)
            delays.append(time.monotonic() - asked_at)
            await asyncio.to_thread(probe.wait_for_tokens, stream_id, SMALL_WINDOW + seq, seconds=0)
    assert probe.token_count(filler) == 256, "its client has taken nothing meanwhile"
    await drop(connection)
    assert_soon("acknowledgement to next token", delays)


async def test_a_cancel_acts(stack: LiveStack, probe: StreamProbe) -> None:
    """Of streams on the same connection, whose own pumps wait with their first frame."""
    connection = await opened(stack, max_queue=1, sock=deaf_socket(stack))
    before = probe.stream_ids()
    await ask_on(connection, 4000)
    filler = await asyncio.to_thread(probe.wait_for_new_stream, before)
    await asyncio.to_thread(wait_until_full, probe, [filler])
    await connection.send(json.dumps(MEANINGLESS))  # its answer waits too
    for _ in range(SAMPLES):
        await ask_on(connection, 4000, window=SMALL_WINDOW)
    others = await asyncio.to_thread(probe.wait_for_new_streams, before | {filler}, SAMPLES)
    await asyncio.gather(*[asyncio.to_thread(probe.wait_for_tokens, each, SMALL_WINDOW, seconds=0) for each in others])
    delays = []
    for each in others:
        asked_at = time.monotonic()
        await connection.send(json.dumps({"type": "cancel", "stream_id": each}))
        ended = await asyncio.to_thread(probe.wait_for_end, each)
        delays.append(time.monotonic() - asked_at)
        assert (ended.state, ended.usage.completion_tokens) == (StreamState.CANCELLED, SMALL_WINDOW)
    assert probe.token_count(filler) == 256
    await drop(connection)
    assert_soon("cancel frame to end", delays)


@pytest.mark.parametrize("openings", [full_completions, full_events])
def test_a_request_to_cancel_acts(stack: LiveStack, probe: StreamProbe, openings: Open) -> None:
    transports = openings(stack, probe, SAMPLES)
    delays = []
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    with httpx.Client(headers=headers, base_url=stack.base_url, timeout=HEAR_SECONDS) as http:
        for number, transport in enumerate(transports):
            url = f"/v1/streams/{transport.stream_id}"
            asked_at = time.monotonic()
            answer = http.post(f"{url}/cancel") if number % 2 else http.delete(url)
            ended = probe.wait_for_end(transport.stream_id)
            delays.append(time.monotonic() - asked_at)
            assert answer.is_success
            assert ended.state is StreamState.CANCELLED
    for transport in transports:
        transport.raw.close()
    assert_soon("request to end", delays)


@pytest.mark.parametrize("leave", [finish, close, reset])
@pytest.mark.parametrize("openings", [full_websockets, full_completions, full_events])
def test_leaving_acts(stack: LiveStack, probe: StreamProbe, openings: Open, leave: Leave) -> None:
    assert_soon(f"{leave.__name__} to end", departures(probe, openings(stack, probe, SAMPLES), leave))


def test_a_close_frame_acts(stack: LiveStack, probe: StreamProbe) -> None:
    assert_soon("close frame to end", departures(probe, full_websockets(stack, probe, SAMPLES), say_goodbye))


def departures(probe: StreamProbe, transports: Sequence[FullTransport], leave: Leave) -> list[float]:
    """Leave one after the other; return how long each stream went on."""
    delays = []
    for transport in transports:
        left_at = time.monotonic()
        leave(transport.raw)
        ended = probe.wait_for_end(transport.stream_id)
        delays.append(time.monotonic() - left_at)
        assert ended.state is StreamState.CANCELLED
        transport.raw.close()
    return delays


def assert_soon(what: str, delays: Sequence[float]) -> None:
    assert len(delays) >= SAMPLES
    median, p95 = statistics.median(delays), statistics.quantiles(delays, n=20)[-1]
    figures = f"{what}: median {median * 1000:.1f} ms, p95 {p95 * 1000:.1f} ms, {len(delays)} samples"
    print(figures)
    assert median <= ACT_SECONDS, figures
