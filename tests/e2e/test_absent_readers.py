"""Readers that go away for longer than a stream is held: suspended, cut off, frozen; and they come back."""

import asyncio
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from redis import Redis

from headrace_wire.fleet import WorkerInfo
from headrace_wire.latency.measures import Tally
from headrace_wire.latency.store import series_read
from headrace_wire.latency.summary import Summary
from headrace_wire.messages import StreamState
from headrace_worker.holding import SUSPENSIONS_PER_MINUTE
from tests.support.impatient_gateway import impatient_gateway
from tests.support.live_stack import LiveStack, running_stack
from tests.support.processes import PATIENCE_SECONDS, Process, free_port
from tests.support.slow_clients import (
    HEAR_SECONDS,
    MODEL,
    drop,
    generate,
    give_up,
    opened,
    read_on,
    sse_asked,
    stalled,
)
from tests.support.stream_probe import StreamProbe

WINDOW = 256
TOKENS = 1500
HOLD_SECONDS = 0.3
CONNECTIONS = 5
FAST = {"engine_args": {"ttft_ms": 2, "tpot_ms": 1}, "max_model_len": 8192, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def stack() -> Iterator[LiveStack]:
    with (
        tempfile.TemporaryDirectory(prefix="headrace-absent-") as folder,
        running_stack(
            Path(folder),
            {MODEL: FAST},
            tenant={"max_connections": CONNECTIONS},
            HEADRACE_HOLD_SECONDS=str(HOLD_SECONDS),
        ) as stack,
    ):
        yield stack


@pytest.fixture
def probe(stack: LiveStack) -> StreamProbe:
    return StreamProbe(stack.redis_url)


@pytest.fixture(scope="module")
def golden(stack: LiveStack) -> str:
    """The undisturbed answer of `TOKENS` tokens."""
    with sse_asked(stack, TOKENS) as reader:
        return reader.read_to_end()


async def test_a_suspended_stream_is_shown_as_such_and_is_read_on(
    stack: LiveStack, probe: StreamProbe, golden: str
) -> None:
    connection, stream_id = await stalled(stack, TOKENS)
    await asyncio.to_thread(probe.wait_for_state, stream_id, StreamState.SUSPENDED)
    async with httpx.AsyncClient(headers={"api-key": stack.api_key}, timeout=HEAR_SECONDS) as http:
        shown = (await http.get(f"{stack.base_url}/v1/streams/{stream_id}")).json()
    assert (shown["state"], shown["reason"], shown["seq"]) == ("suspended", "slow_consumer", WINDOW)
    await asyncio.to_thread(probe.wait_for_worker, MODEL, has_nothing)
    assert await read_on(connection, stream_id) == (golden, TOKENS)
    assert len(probe.owners(stream_id)) >= 2
    await connection.close()


async def test_a_reader_that_comes_and_goes_causes_no_storm(stack: LiveStack, probe: StreamProbe, golden: str) -> None:
    """It stays away for longer than it is held each time, ten times."""
    async with opened(stack) as connection:
        stream_id = await generate(connection, TOKENS, window=32)
        text, seq = "", 0
        for _ in range(10):
            more, seq = await read_on(connection, stream_id, until=seq + 32)
            text += more
            away = (StreamState.HELD, StreamState.SUSPENDED)
            await asyncio.to_thread(probe.wait_for_state, stream_id, *away)
            await asyncio.sleep(2 * HOLD_SECONDS)  # it is away
        assert 2 <= len(probe.owners(stream_id)) <= SUSPENSIONS_PER_MINUTE
        more, seq = await read_on(connection, stream_id)
    assert (text + more, seq) == (golden, TOKENS)


def has_nothing(worker: WorkerInfo) -> bool:
    """Say whether the engine has no request, and keeps nothing for one."""
    return not (worker.num_requests_running or worker.num_requests_held or worker.kv_cache_usage)


CLIENT = """
import hashlib, json, os, signal, sys
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

def read(socket, first):
    global seq, text
    socket.send(json.dumps(first))
    for message in socket:
        frame = json.loads(message)
        if frame["type"] == "queued":
            print("stream", frame["stream_id"], flush=True)
            then["stream_id"] = frame["stream_id"]
        elif frame["type"] == "delta":
            assert frame["seq"] > seq
            if not seq:
                os.kill(os.getpid(), signal.SIGSTOP)
            seq, text = frame["seq"], text + frame["text"]
            socket.send(json.dumps({"type": "ack", "stream_id": frame["stream_id"], "seq": seq}))
        elif frame["type"] == "end":
            print("end", seq, frame["state"], hashlib.sha256(text.encode()).hexdigest(), flush=True)
            return

url, later, key, tokens = sys.argv[1:5]
seq, text, then = 0, "", {"type": "resume"}
options = dict(subprotocols=["headrace.v1"], additional_headers={"Authorization": f"Bearer {key}"},
               open_timeout=None, ping_interval=None)
first = {"type": "generate", "model": "model", "messages": [{"role": "user", "content": "Say something."}],
         "max_tokens": int(tokens), "ignore_eos": True, "temperature": 0}
while first:
    try:
        with connect(url, **options) as socket:
            read(socket, first)
        first = None
    except ConnectionClosed as closed:
        print("closed", closed.rcvd.code if closed.rcvd else None, flush=True)
        url, first = later, {**then, "after": seq}
"""


def client(stack: LiveStack, base_url: str, folder: Path, *, tokens: int = TOKENS) -> Process:
    """Start a client in a process of its own, which stops itself with its first token.

    Whenever it is cut off it resumes, on the stack's first gateway.
    """
    script = folder / "client.py"
    script.write_text(CLIENT)
    url = base_url.replace("http://", "ws://") + "/v1/ws"
    return Process([sys.executable, script, url, stack.ws_url, stack.api_key, str(tokens)], name="client")


def wait_until_stopped(process: Process) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, process.log
        time.sleep(0.02)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_stopped_client_is_slow_not_dead(stack: LiveStack, probe: StreamProbe, tmp_path: Path, golden: str) -> None:
    port = free_port()
    # As by default, the timeout is a few intervals; both are scaled down.
    gateway = stack.start_gateway(port, "--ping-interval-seconds", "0.5", "--ping-timeout-seconds", "120")
    with client(stack, f"http://127.0.0.1:{port}", tmp_path) as process:
        stream_id = process.wait_for_line(r"stream (\S+)").group(1)
        wait_until_stopped(process)
        held = probe.wait_until_still(stream_id, seconds=2.5)  # five ping periods
        assert held < TOKENS
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait_for_line(r"end (.+)").group(1) == f"{TOKENS} finished {sha256(golden)}"
        assert "closed" not in process.log
    gateway.stop()


async def test_a_tenant_has_only_so_many_connections(stack: LiveStack) -> None:
    connections = [await stalled(stack) for _ in range(CONNECTIONS)]
    async with opened(stack) as one_more:
        frame = json.loads(await one_more.recv())
        assert (frame["type"], frame["error"]["code"]) == ("error", "rate_limit_exceeded")
        await one_more.wait_closed()
        assert one_more.close_code == 4429
    async with httpx.AsyncClient(headers={"api-key": stack.api_key}, timeout=HEAR_SECONDS) as http:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        refused = await http.post(f"{stack.base_url}/v1/chat/completions", json=body)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        await give_up(stack, connections.pop())

        async def is_served() -> bool:
            answer = await http.post(f"{stack.base_url}/v1/chat/completions", json=body)
            return answer.status_code == 200

        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await is_served():  # noqa: ASYNC110  # the server tells nobody that it has seen one leave
                await asyncio.sleep(0.05)
    await give_up(stack, *connections)


async def test_streams_whose_gateway_was_killed_go_by_their_policy(
    stack: LiveStack, probe: StreamProbe, golden: str
) -> None:
    """Their clients never come back: one could have, and its answer is finished; the other had no means to."""
    port = free_port()
    gateway = stack.start_gateway(port)
    there = replace(stack, base_url=f"http://127.0.0.1:{port}", ws_url=f"ws://127.0.0.1:{port}/v1/ws")
    connection, stream_id = await stalled(there, TOKENS)
    before = probe.stream_ids()
    with sse_asked(there, TOKENS):
        plain = await asyncio.to_thread(probe.wait_for_new_stream, before)
        for each in (stream_id, plain):
            await asyncio.to_thread(probe.wait_for_state, each, StreamState.SUSPENDED)
        stack.kill_gateway()
    gateway.stop()
    assert (await asyncio.to_thread(probe.wait_for_end, stream_id)).state is StreamState.FINISHED
    assert probe.text(stream_id) == golden
    assert (await asyncio.to_thread(probe.wait_for_end, plain)).state is StreamState.CANCELLED
    await drop(connection)


@pytest.fixture(scope="module")
def impatient(stack: LiveStack) -> Iterator[tuple[Process, LiveStack]]:
    """A second gateway, which cuts clients off after a second; used last, since the first one does it then too."""
    with impatient_gateway(stack) as (gateway, url):
        yield gateway, replace(stack, base_url=url, ws_url=url.replace("http://", "ws://") + "/v1/ws")


def test_a_client_that_is_stopped_for_too_long_is_cut_off_and_resumes(
    stack: LiveStack, impatient: tuple[Process, LiveStack], probe: StreamProbe, tmp_path: Path, golden: str
) -> None:
    gateway, there = impatient
    with client(stack, there.base_url, tmp_path) as process:
        stream_id = process.wait_for_line(r"stream (\S+)").group(1)
        wait_until_stopped(process)
        gateway.wait_for_line("client_stalled")
        probe.wait_for_state(stream_id, StreamState.SUSPENDED)
        probe.wait_for_worker(MODEL, has_nothing)
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait_for_line(r"closed (.+)").group(1) == "4408"
        assert process.wait_for_line(r"end (.+)").group(1) == f"{TOKENS} finished {sha256(golden)}"
    wait_for_timeouts(stack, gateway, 1)


def test_a_plain_request_that_takes_nothing_for_too_long_ends(
    stack: LiveStack, impatient: tuple[Process, LiveStack], probe: StreamProbe, golden: str
) -> None:
    """Its client has no means to resume: nobody will ask for the rest."""
    gateway, there = impatient
    before, timeouts = probe.stream_ids(), timeouts_of(stack, gateway)
    with sse_asked(there, TOKENS):
        stream_id = probe.wait_for_new_stream(before)
        ended = probe.wait_for_end(stream_id)
        assert ended.state is StreamState.CANCELLED
        assert WINDOW <= ended.usage.completion_tokens < TOKENS
        probe.wait_for_worker(MODEL, has_nothing)
    assert golden.startswith(probe.text(stream_id))
    wait_for_timeouts(stack, gateway, timeouts + 1)


def timeouts_of(stack: LiveStack, gateway: Process) -> int:
    """Return how many streams that a deadline ended a gateway's book has filed."""
    with Redis.from_url(stack.redis_url) as redis:
        parts = [part for part in series_read(redis, start=0, end=2**40) if part.part.startswith(f"{gateway.pid}-")]
    return sum(Summary.unpack(part.packed).tally(Tally.TIMEOUTS) for part in parts)


def wait_for_timeouts(stack: LiveStack, gateway: Process, count: int) -> None:
    """Wait until the book, which is filed at each slot's end, has so many; there are to be no more."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := timeouts_of(stack, gateway)) < count:
        assert time.monotonic() < deadline, f"{found} of {count} timeouts"
        time.sleep(0.2)
    assert found == count
