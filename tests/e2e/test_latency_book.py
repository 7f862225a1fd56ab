"""What the latency book says of streams, beside what their clients saw: through all edges, up to the gateway's end."""

import json
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from redis import Redis
from websockets.sync.client import connect

from headrace_wire.latency.measures import PHASES, Measure, Tally
from headrace_wire.latency.store import series_read
from headrace_wire.latency.summary import SeriesKey, Summary
from tests.support.live_stack import LiveStack
from tests.support.processes import Process, free_port
from tests.support.slow_clients import HEAR_SECONDS

ASK: Any = [{"role": "user", "content": "Say something."}]
STREAMS = 12
TOKENS = 40
SHARES = (0.5, 0.9, 0.95, 0.99)
ERROR = 0.02
"""What a quantile of the book may be off, as promised."""
LATE_SECONDS = 0.02
"""How late a busy machine may give the gateway its turn again after a write, before which its client has the text."""


@dataclass
class Seen:
    """What clients saw of all their streams."""

    firsts: list[float] = field(default_factory=list)
    """Seconds from sending the request to the first text."""
    totals: list[float] = field(default_factory=list)
    texts: int = 0
    tokens: int = 0


@pytest.fixture(scope="module")
def gateway(live_stack: LiveStack) -> Iterator[tuple[Process, int]]:
    """One of our own: its book has nothing but our streams, and all of them once it has ended."""
    port = free_port()
    process = live_stack.start_gateway(port)
    yield process, port
    process.stop()


@pytest.fixture(scope="module")
def seen(live_stack: LiveStack, gateway: tuple[Process, int]) -> dict[str, Seen]:
    """Have streams on each edge, with a deployment for each, and end the gateway."""
    process, port = gateway
    headers = {"authorization": f"Bearer {live_stack.api_key}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=HEAR_SECONDS) as client:
        found = {"quick": _streamed(client), "teller": _plain(client)}
        found["small"] = _over_websocket(port, headers)
        refused = client.post("/v1/chat/completions", json={"model": "quick", "messages": []})
        assert refused.status_code == 400
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    return found


@pytest.fixture(scope="module")
def booked(live_stack: LiveStack, gateway: tuple[Process, int], seen: dict[str, Seen]) -> dict[SeriesKey, Summary]:
    assert seen
    summaries: dict[SeriesKey, Summary] = {}
    with Redis.from_url(live_stack.redis_url) as redis:
        for part in series_read(redis, start=0, end=2**40):
            if part.part.startswith(f"{gateway[0].pid}-"):
                summaries.setdefault(part.key, Summary()).merge_packed(part.packed)
    return summaries


def _streamed(client: httpx.Client) -> Seen:
    seen = Seen()
    body = {"model": "quick", "messages": ASK, "max_tokens": TOKENS, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    for _ in range(STREAMS):
        began, first = time.perf_counter(), 0.0
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                chunk = json.loads(line[6:]) if line.startswith("data: {") else {}
                seen.tokens += (chunk.get("usage") or {}).get("completion_tokens", 0)
                if any(choice["delta"].get("content") for choice in chunk.get("choices", [])):
                    first = first or time.perf_counter() - began
                    seen.texts += 1
        seen.firsts.append(first)
        seen.totals.append(time.perf_counter() - began)
    return seen


def _plain(client: httpx.Client) -> Seen:
    seen = Seen()
    for _ in range(STREAMS):
        began = time.perf_counter()
        answer = client.post("/v1/chat/completions", json={"model": "teller", "messages": ASK, "max_tokens": TOKENS})
        seen.totals.append(time.perf_counter() - began)
        seen.firsts.append(int(answer.headers["x-headrace-ttft-ms"]) / 1000)
        seen.tokens += answer.json()["usage"]["completion_tokens"]
    return seen


def _over_websocket(port: int, headers: dict[str, str]) -> Seen:
    seen = Seen()
    with connect(f"ws://127.0.0.1:{port}/v1/ws", additional_headers=headers, open_timeout=HEAR_SECONDS) as socket:
        for _ in range(STREAMS):
            began, first = time.perf_counter(), 0.0
            socket.send(json.dumps({"type": "generate", "model": "small", "messages": ASK, "max_tokens": TOKENS}))
            frame: dict[str, Any] = {}
            while frame.get("type") != "end":
                frame = json.loads(socket.recv(timeout=60))
                if frame["type"] == "delta":
                    first = first or time.perf_counter() - began
                    seen.texts += 1
            seen.firsts.append(first)
            seen.totals.append(time.perf_counter() - began)
            seen.tokens += frame["usage"]["completion_tokens"]
    return seen


def summary_of(booked: dict[SeriesKey, Summary], deployment: str) -> Summary:
    """Return the only series of a deployment."""
    (found,) = [summary for key, summary in booked.items() if key.deployment == deployment]
    return found


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def test_every_stream_is_there_once_and_belongs_to_somebody(
    booked: dict[SeriesKey, Summary], seen: dict[str, Seen]
) -> None:
    assert {key.deployment for key in booked} == set(seen)
    for key, summary in booked.items():
        assert len(key.tenant_id) == len(key.key_id) == 32
        assert key.worker.startswith("worker-")
        assert summary.tally(Tally.REQUESTS) == STREAMS
        assert summary.tally(Tally.TOKENS) == seen[key.deployment].tokens
        assert summary.tally(Tally.PROMPT_TOKENS) > 0
        assert not summary.tally(Tally.ERRORS)
        for measure in (Measure.TTFT, Measure.TOTAL, Measure.TPOT, Measure.QUEUE, Measure.PREFILL, Measure.FLUSH):
            assert summary.histograms[measure].count == STREAMS, measure


def test_phases_add_up_to_the_first_token(booked: dict[SeriesKey, Summary]) -> None:
    for summary in booked.values():
        phases = [summary.histogram(phase).sum_seconds for phase in PHASES]
        assert sum(phases) == pytest.approx(summary.histograms[Measure.TTFT].sum_seconds)
        assert all(phase >= 0 for phase in phases)
        assert summary.histograms[Measure.PREFILL].quantile(0.5) >= 0.01, "the simulated engine takes that long"


@pytest.mark.parametrize("deployment", ["quick", "small"])
def test_there_is_a_gap_between_every_two_texts(
    booked: dict[SeriesKey, Summary], seen: dict[str, Seen], deployment: str
) -> None:
    gaps = summary_of(booked, deployment).histograms[Measure.GAP]
    assert gaps.count == seen[deployment].texts - STREAMS


def test_percentiles_are_those_that_the_gateway_told_with_each_answer(
    booked: dict[SeriesKey, Summary], seen: dict[str, Seen]
) -> None:
    told, book = seen["teller"].firsts, summary_of(booked, "teller").histograms[Measure.TTFT]
    for share in SHARES:
        exact = quantile(told, share)
        assert book.quantile(share) == pytest.approx(exact, rel=ERROR, abs=0.001), "the header says milliseconds"


def test_no_client_waited_less_than_the_book_says(booked: dict[SeriesKey, Summary], seen: dict[str, Seen]) -> None:
    # The other way round, how much more they waited, is theirs and this machine's: the bench compares that.
    # Of twelve streams the median: beyond it, one moment in which the machine stood still would be compared.
    for deployment, clients in seen.items():
        summary = summary_of(booked, deployment)
        for measure, waited in ((Measure.TOTAL, clients.totals), (Measure.TTFT, clients.firsts)):
            book, client = summary.histograms[measure].quantile(0.5), quantile(waited, 0.5)
            assert book <= client * (1 + ERROR) + LATE_SECONDS, (deployment, measure)
