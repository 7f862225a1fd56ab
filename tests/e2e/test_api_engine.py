"""Both interfaces on the real engine: vLLM with the tiny model."""

import asyncio
import json
from typing import Any

import openai
import pytest
from websockets.sync.client import connect

from headrace_wire.messages import StreamState
from tests.support.live_stack import LiveStack
from tests.support.slow_clients import HEAR_SECONDS, MODEL, begin_and_leave
from tests.support.stream_probe import StreamProbe

pytestmark = pytest.mark.engine

ASK: Any = [{"role": "user", "content": "Tell me about rivers."}]
SCRIPTS = "🌊 สวัสดี 👩‍👩‍👧 漢字 é"


@pytest.fixture(scope="module")
def stack(engine_stack: LiveStack) -> LiveStack:
    return engine_stack


@pytest.fixture(scope="module")
def client(stack: LiveStack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.base_url}/v1", api_key=stack.api_key, max_retries=0, timeout=60)


@pytest.fixture
def probe(stack: LiveStack) -> StreamProbe:
    return StreamProbe(stack.redis_url)


def test_streamed_text_equals_the_plain_answer(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 120}
    plain = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == plain.choices[0].message.content
    assert plain.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens == 120
    assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens


def test_every_script_arrives_byte_exact(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"t": {"enum": [SCRIPTS]}},
        "required": ["t"],
        "additionalProperties": False,
    }
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        temperature=0,
        max_tokens=200,
        stream=True,
        response_format={"type": "json_schema", "json_schema": {"name": "scripts", "schema": schema}},
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert json.loads(text) == {"t": SCRIPTS}
    assert "\ufffd" not in text


def test_a_stop_string_is_cut_exactly(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 60}
    whole = client.chat.completions.create(**options).choices[0].message.content
    assert whole is not None
    stop = whole[30:36]
    cut = client.chat.completions.create(**options, stop=stop)
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_seeded_sampling_repeats(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 1, "max_tokens": 30}
    first, second, other = (client.chat.completions.create(**options, seed=seed) for seed in (7, 7, 8))
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.choices[0].message.content != other.choices[0].message.content


def test_a_long_prompt_is_refused_with_its_length(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "river " * 9000}])
    assert error.value.code == "context_length_exceeded"
    assert "8192" in error.value.message


def test_the_prefix_cache_is_used_within_a_tenant(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "A long story about water. " * 30}]
    options: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 2}
    client.chat.completions.create(**options)
    usage = client.chat.completions.create(**options).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) >= 32


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_http_stops_the_engine(stack: LiveStack, probe: StreamProbe, stream: bool) -> None:
    body = {"model": MODEL, "messages": ASK, "max_tokens": 1900, "ignore_eos": True, "stream": stream}
    await asyncio.to_thread(_check_stopped, probe, await begin_and_leave(stack, probe, body))


def test_cancel_over_websocket_stops_the_engine(stack: LiveStack, probe: StreamProbe) -> None:
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    options: dict[str, Any] = {"subprotocols": ["headrace.v1"], "open_timeout": HEAR_SECONDS}
    with connect(stack.ws_url, additional_headers=headers, **options) as socket:
        frame = {"type": "generate", "model": MODEL, "messages": ASK, "max_tokens": 1900, "ignore_eos": True}
        socket.send(json.dumps(frame))
        while (heard := json.loads(socket.recv(timeout=60)))["type"] != "delta":
            pass
        socket.send(json.dumps({"type": "cancel", "stream_id": heard["stream_id"]}))
        while (heard := json.loads(socket.recv(timeout=60)))["type"] != "end":
            pass
    assert heard["state"] == "cancelled"
    assert heard["usage"]["completion_tokens"] == _check_stopped(probe, heard["stream_id"])


def _check_stopped(probe: StreamProbe, stream_id: str) -> int:
    """Check that the stream was cancelled, the engine is idle, and usage is the engine's count; return it."""
    ended = probe.wait_for_end(stream_id)
    assert ended.state is StreamState.CANCELLED
    assert 0 < ended.usage.completion_tokens < 1900
    assert ended.usage.completion_tokens == probe.token_count(stream_id)
    worker = probe.wait_until_idle(MODEL)
    assert (worker.num_requests_running, worker.num_requests_waiting) == (0, 0)
    return ended.usage.completion_tokens
