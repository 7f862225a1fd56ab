"""More clients than a gateway may serve: exactly as many as it may are served, the rest are refused at once."""

import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.live_stack import LiveStack, running_stack

LIMIT = 512
CLIENTS = 640
SLOW = {"engine_args": {"ttft_ms": 5, "tpot_ms": 500}, "max_num_seqs": 4096, "queue_limit": 10_000}


@pytest.fixture(scope="module")
def stack() -> Iterator[LiveStack]:
    with (
        tempfile.TemporaryDirectory(prefix="headrace-crowd-") as folder,
        running_stack(Path(folder), {"slow": SLOW}, HEADRACE_MAX_STREAMS=str(LIMIT)) as stack,
    ):
        yield stack


class Outcome:
    """What one client saw."""

    def __init__(self) -> None:
        self.status = 0
        self.seconds = 0.0
        self.headers = ""
        self.tokens = 0
        self.done = False
        self.answered = asyncio.Event()


async def _client(stack: LiveStack, body: bytes, outcome: Outcome, go_on: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.base_url.rsplit(":", 1)[1]))
    began = time.perf_counter()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
        % (stack.api_key.encode(), len(body))
        + body
    )
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        outcome.seconds = time.perf_counter() - began
        outcome.status, outcome.headers = int(head.split()[1]), head.decode().lower()
        outcome.answered.set()
        if outcome.status != 200:
            return
        while not outcome.done and not go_on.is_set():
            chunk = await reader.read(65536)
            outcome.tokens += chunk.count(b'"content":"')
            outcome.done = b"[DONE]" in chunk or not chunk
    finally:
        writer.close()
        await writer.wait_closed()


async def test_exactly_the_limit_is_served_and_the_rest_refused_at_once(stack: LiveStack) -> None:
    gateway = psutil.Process(stack.gateway_pid)
    idle = gateway.memory_info().rss
    request: dict[str, Any] = {
        "model": "slow",
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "max_tokens": 1000,
        "ignore_eos": True,
    }
    body, go_on = json.dumps(request).encode(), asyncio.Event()
    outcomes = [Outcome() for _ in range(CLIENTS)]
    tasks = []
    for outcome in outcomes:
        tasks.append(asyncio.create_task(_client(stack, body, outcome, go_on)))
        await asyncio.sleep(0.004)  # the ramp
    async with asyncio.timeout(60):
        await asyncio.gather(*[outcome.answered.wait() for outcome in outcomes])
    open_rss = gateway.memory_info().rss
    statuses = Counter(outcome.status for outcome in outcomes)
    go_on.set()
    await asyncio.gather(*tasks)
    assert statuses == {200: LIMIT, 503: CLIENTS - LIMIT}
    refused = [outcome for outcome in outcomes if outcome.status == 503]
    assert all("retry-after: " in outcome.headers for outcome in refused)
    served = [outcome for outcome in outcomes if outcome.status == 200]
    assert statistics.median(outcome.tokens for outcome in served) >= 1
    print(  # figures for the reader of the log; `make bench` keeps them
        f"refusals: median {statistics.median(o.seconds for o in refused) * 1000:.1f} ms; "
        f"{(open_rss - idle) / LIMIT / 1024:.0f} KiB per open stream"
    )
