"""A traced installation: each request a span with its phases, one name through all processes, and no word of a text."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from websockets.sync.client import connect

from tests.support.live_stack import LiveStack, running_stack
from tests.support.otlp_collector import Collector, attributes, running_collector
from tests.support.signing_in import sign_in
from tests.support.slow_clients import HEAR_SECONDS

SECRET = "zebrafinch-marmalade"
"""Stands in every prompt."""
ANSWER = "quokka-tangerine said so."
CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "told": {"engine_args": {"ttft_ms": 20, "tpot_ms": 5, "answer": ANSWER}},
    "tiny": {"engine_args": {"ttft_ms": 20, "tpot_ms": 5}, "max_model_len": 200, "default_max_tokens": 16},
}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def stack(collector: Collector) -> Iterator[LiveStack]:
    with (
        tempfile.TemporaryDirectory(prefix="headrace-traced-") as folder,
        running_stack(
            Path(folder),
            DEPLOYMENTS,
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_BSP_SCHEDULE_DELAY="100",
            HEADRACE_LOG_LEVEL="DEBUG",
            HEADRACE_LOG_JSON="1",
        ) as stack,
    ):
        yield stack


def ask(stack: LiveStack, model: str, *, words: int = 1, stream: bool = False, **headers: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": f"{SECRET} " * words}], "stream": stream}
    headers["authorization"] = f"Bearer {stack.api_key}"
    return httpx.post(f"{stack.base_url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def span_of(collector: Collector, stream_id: str) -> Span:
    """Return a stream's span; it ends after its phases."""
    return collector.wait_for(lambda span: attributes(span).get("headrace.stream_id") == stream_id)


def test_a_request_is_a_span_with_its_phases(stack: LiveStack, collector: Collector) -> None:
    answer = ask(stack, "told", traceparent=f"00-{CALLER}-00f067aa0ba902b7-01", tracestate=f"x={SECRET}")
    assert answer.status_code == 200
    stream_id = answer.headers["x-headrace-stream-id"]
    request = span_of(collector, stream_id)
    assert request.trace_id.hex() == CALLER
    said = attributes(request)
    assert request.name == "chat told"
    assert request.parent_span_id.hex() == "00f067aa0ba902b7"
    assert (said["gen_ai.operation.name"], said["gen_ai.request.model"]) == ("chat", "told")
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    usage = answer.json()["usage"]
    assert said["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert said["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    phases = {span.name: span for span in collector.spans if span.parent_span_id == request.span_id}
    assert {"queue", "prefill", "decode"} <= set(phases)
    assert phases["queue"].end_time_unix_nano == phases["prefill"].start_time_unix_nano
    assert phases["prefill"].end_time_unix_nano == phases["decode"].start_time_unix_nano
    for phase in phases.values():
        assert request.start_time_unix_nano <= phase.start_time_unix_nano <= phase.end_time_unix_nano
    assert phases["prefill"].end_time_unix_nano - phases["prefill"].start_time_unix_nano >= 15_000_000


def test_a_websocket_s_streams_are_spans_too(stack: LiveStack, collector: Collector) -> None:
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    options: dict[str, Any] = {"subprotocols": ["headrace.v1"], "open_timeout": HEAR_SECONDS}
    with connect(stack.ws_url, additional_headers=headers, **options) as socket:
        messages = [{"role": "user", "content": SECRET}]
        socket.send(json.dumps({"type": "generate", "model": "told", "messages": messages}))
        heard: dict[str, Any] = {}
        while heard.get("type") != "end":
            heard = json.loads(socket.recv())
    span = span_of(collector, heard["stream_id"])
    assert attributes(span)["headrace.transport"] == "ws"
    assert not span.parent_span_id


def test_an_answer_in_the_chat_is_a_span_too(stack: LiveStack, collector: Collector) -> None:
    with httpx.Client(base_url=stack.base_url, follow_redirects=True, timeout=60) as http:
        sign_in(http, stack)
        protocols: Any = ["headrace.v1", f"headrace.ticket.{http.get('/chat/ticket').json()['ticket']}"]
        body = {"turn_id": str(uuid4()), "text": SECRET, "model": "told"}
        sent = http.post(f"/chat/conversations/{uuid4()}/turns", json=body)
        stream_id = sent.json()["answer"]["stream_id"]
    origin: Any = stack.base_url
    with connect(stack.ws_url, subprotocols=protocols, origin=origin, open_timeout=HEAR_SECONDS) as socket:
        socket.send(json.dumps({"type": "resume", "stream_id": stream_id, "after": 0}))
        heard: dict[str, Any] = {}
        while heard.get("type") != "end":
            heard = json.loads(socket.recv())
    span = span_of(collector, stream_id)
    said = attributes(span)
    assert (span.name, said["headrace.transport"], said["headrace.state"]) == ("chat told", "ws", "finished")
    assert said["gen_ai.usage.output_tokens"] == heard["usage"]["completion_tokens"]
    phases = {child.name for child in collector.spans if child.parent_span_id == span.span_id}
    assert {"queue", "prefill", "decode"} <= phases


def test_a_refused_request_says_why(stack: LiveStack, collector: Collector) -> None:
    assert ask(stack, "tiny", words=500).status_code == 400
    span = collector.wait_for(lambda span: span.name == "chat tiny")
    assert attributes(span)["error.type"] == "context_length_exceeded"
    assert span.status.code == 0, "the caller's own mistake is no failure of ours"


def test_one_name_through_all_processes_and_no_word_of_a_text(stack: LiveStack, collector: Collector) -> None:
    """Runs last: all that the others said is in the logs and the spans."""
    stream_id = ask(stack, "told", stream=True, traceparent=f"00-{CALLER}-00f067aa0ba902b7-01").headers[
        "x-headrace-stream-id"
    ]
    worker = next(process for process in stack.processes if process.name == "worker:told")
    worker.wait_for_line(f"claimed stream_id={stream_id}")
    lines = [json.loads(line) for line in worker.log.splitlines() if stream_id in line]
    assert {line["stream_id"] for line in lines} == {stream_id}
    assert lines[0]["trace_id"] == CALLER
    span_of(collector, stream_id)
    said = stack.log.encode() + b"".join(collector.bodies)
    assert stream_id.encode() in said
    for word in (SECRET, "quokka"):
        assert word.encode() not in said
