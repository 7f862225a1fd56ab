"""The HTTP interface through real clients: the openai package, curl, and nginx in front with its default buffering."""

import asyncio
import itertools
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from headrace_wire.messages import StreamState
from tests.support.live_stack import LiveStack
from tests.support.processes import PATIENCE_SECONDS, Process, free_port
from tests.support.slow_clients import HEAR_SECONDS, begin_and_leave
from tests.support.stream_probe import StreamProbe


def deploy(stack: LiveStack, name: str, **fields: object) -> None:
    """Create a deployment as an admin would; nobody serves it."""
    stack.run_django(
        "from apps.deployments.models import ModelDeployment\n"
        "from apps.deployments.services import deployment_create\n"
        f"deployment_create(deployment=ModelDeployment(name={name!r}, model='x', engine='simulated', **{fields!r}))"
    )


ASK: Any = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def client(live_stack: LiveStack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live_stack.base_url}/v1", api_key=live_stack.api_key, max_retries=0)


@pytest.fixture
def probe(live_stack: LiveStack) -> StreamProbe:
    return StreamProbe(live_stack.redis_url)


def test_streamed_text_equals_the_plain_answer(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="quick", messages=ASK, temperature=0, max_tokens=40)
    stream = client.chat.completions.create(model="quick", messages=ASK, temperature=0, max_tokens=40, stream=True)
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == plain.choices[0].message.content
    assert text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert chunks[-1].choices[0].finish_reason == plain.choices[0].finish_reason
    assert plain.usage is not None
    assert plain.usage.completion_tokens <= 40


def test_include_usage_adds_one_last_chunk(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="quick", messages=ASK, max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7
    assert chunks[-2].choices[0].finish_reason == "length"


def test_every_script_arrives_byte_exact(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="quick", messages=ASK, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in stream)
    assert "🌊 สวัสดี 👩‍👩‍👧 漢字" in text
    assert "\ufffd" not in text


def test_refusals_have_the_sdks_error_classes(client: openai.OpenAI, live_stack: LiveStack) -> None:
    with pytest.raises(openai.AuthenticationError) as unauthorised:
        client.with_options(api_key="sk-hr-wrong").models.list()
    assert unauthorised.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nope", messages=ASK)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as empty:
        client.chat.completions.create(model="quick", messages=[])
    assert empty.value.param == "messages"
    for words, measure in ((40_000, "tokens, and your messages take"), (500_000, "2500000 characters")):
        with pytest.raises(openai.BadRequestError, match=measure) as long:
            client.chat.completions.create(model="quick", messages=[{"role": "user", "content": "word " * words}])
        assert long.value.code == "context_length_exceeded"
    big = b'{"model":"quick","messages":[{"role":"user","content":"' + b"x" * 9_000_000 + b'"}]}'
    headers = {"authorization": f"Bearer {live_stack.api_key}"}
    answer = httpx.post(
        f"{live_stack.base_url}/v1/chat/completions", content=big, headers=headers, timeout=HEAR_SECONDS
    )
    assert answer.status_code == 413
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/chat/completions", b"", 405),
        ("POST", "/v1/models", b"", 405),
        ("GET", "/v1/nothing", b"", 404),
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"\xff\x00", 400),
        ("POST", "/v1/chat/completions", b'{"model": 1}', 400),
    ],
)
def test_bad_requests_get_the_error_body(
    live_stack: LiveStack, method: str, path: str, body: bytes, status: int
) -> None:
    headers = {"authorization": f"Bearer {live_stack.api_key}"}
    answer = httpx.request(method, live_stack.base_url + path, content=body, headers=headers, timeout=HEAR_SECONDS)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("name", ["api-key", "x-api-key"])
def test_other_key_headers_are_taken(live_stack: LiveStack, name: str) -> None:
    headers = {name: live_stack.api_key}
    answer = httpx.get(f"{live_stack.base_url}/v1/models", headers=headers, timeout=HEAR_SECONDS)
    assert answer.status_code == 200
    assert {"quick", "slow"} <= {model["id"] for model in answer.json()["data"]}
    assert all(model["simulated"] for model in answer.json()["data"]), "a simulated engine says so"


def test_the_key_is_checked_before_the_body_is_read(live_stack: LiveStack) -> None:
    answer = httpx.post(f"{live_stack.base_url}/v1/chat/completions", content=b"not json", timeout=HEAR_SECONDS)
    assert answer.status_code == 401


def test_a_plain_answer_tells_its_stream_and_times(live_stack: LiveStack) -> None:
    headers = {"authorization": f"Bearer {live_stack.api_key}"}
    body = {"model": "quick", "messages": ASK, "max_tokens": 3}
    url = f"{live_stack.base_url}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=headers, timeout=HEAR_SECONDS)
    assert answer.headers["x-headrace-stream-id"].startswith("strm-")
    assert answer.headers["x-headrace-model-deployment"] == "quick"
    assert int(answer.headers["x-headrace-ttft-ms"]) >= 30, "the simulated engine takes 30 ms to its first token"
    assert int(answer.headers["openai-processing-ms"]) >= int(answer.headers["x-headrace-ttft-ms"])


def test_leaving_stops_the_engine_and_counts_what_was_generated(live_stack: LiveStack, probe: StreamProbe) -> None:
    headers = {"authorization": f"Bearer {live_stack.api_key}"}
    body = {"model": "slow", "messages": ASK, "stream": True, "max_tokens": 400, "ignore_eos": True}
    url = f"{live_stack.base_url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=HEAR_SECONDS) as answer:
        stream_id = answer.headers["x-headrace-stream-id"]
        lines = answer.iter_lines()
        next(line for line in lines if '"content":' in line and '"role"' not in line)
    ended = probe.wait_for_end(stream_id)
    assert ended.state is StreamState.CANCELLED
    assert 0 < ended.usage.completion_tokens < 400
    assert ended.usage.completion_tokens == ended.seq - 1
    probe.wait_until_idle("slow")


async def test_a_plain_request_that_leaves_is_stopped_too(live_stack: LiveStack, probe: StreamProbe) -> None:
    body = {"model": "slow", "messages": ASK, "max_tokens": 400, "ignore_eos": True}
    stream_id = await begin_and_leave(live_stack, probe, body)
    ended = await asyncio.to_thread(probe.wait_for_end, stream_id)
    assert ended.state is StreamState.CANCELLED


def test_curl_streams(live_stack: LiveStack) -> None:
    body = json.dumps({"model": "quick", "messages": ASK, "stream": True, "max_tokens": 5})
    command = ["curl", "-sN", f"{live_stack.base_url}/v1/chat/completions", "-d", body]
    command += ["-H", f"Authorization: Bearer {live_stack.api_key}", "-H", "Content-Type: application/json"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS).stdout
    assert re.match(r": queued position=1( eta_ms=\d+-\d+)?\n\n", out), "how long it takes may be known already"
    assert out.rstrip().endswith("data: [DONE]")


NGINX = """
daemon off; master_process off; error_log stderr; pid {folder}/nginx.pid;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {upstream}; }} }}
}}
"""


def test_nginx_with_default_buffering_still_streams(
    live_stack: LiveStack, nginx: Path, tmp_path: Path, probe: StreamProbe
) -> None:
    deploy(live_stack, "hesitant", engine_args={"ttft_ms": 30, "tpot_ms": 5000})
    worker, port = live_stack.start_worker("hesitant"), free_port()
    config = tmp_path / "nginx.conf"
    config.write_text(NGINX.format(folder=tmp_path, port=port, upstream=live_stack.base_url))
    with Process([nginx, "-c", str(config), "-p", str(tmp_path)], name="nginx") as proxy:
        proxy.wait_for_address(("127.0.0.1", port))
        headers = {"authorization": f"Bearer {live_stack.api_key}"}
        body = {"model": "hesitant", "messages": ASK, "stream": True, "max_tokens": 12, "ignore_eos": True}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=PATIENCE_SECONDS) as answer:
            stream_id = answer.headers["x-headrace-stream-id"]
            lines = answer.iter_lines()  # kept: httpx closes the connection together with an iterator that is dropped
            next(line for line in lines if '"content":' in line and '"role"' not in line)
            # A proxy that buffers so little text would hand over nothing before its end, a minute later.
            assert probe.state(stream_id) == StreamState.RUNNING
        assert probe.wait_for_end(stream_id).state is StreamState.CANCELLED
    worker.stop()


def test_without_a_worker_the_request_waits_then_fails_with_503(live_stack: LiveStack) -> None:
    deploy(live_stack, "nobody", queue_timeout_seconds=1)
    client = openai.OpenAI(base_url=f"{live_stack.base_url}/v1", api_key=live_stack.api_key, max_retries=0)
    started = time.monotonic()
    with pytest.raises(openai.InternalServerError) as plain:
        client.chat.completions.create(model="nobody", messages=ASK)
    assert plain.value.status_code == 503
    assert plain.value.code == "server_overloaded"
    assert time.monotonic() - started >= 1
    with pytest.raises(openai.APIError) as streamed:
        list(client.chat.completions.create(model="nobody", messages=ASK, stream=True))
    assert streamed.value.code == "server_overloaded"


def test_metrics_and_health_answer(live_stack: LiveStack) -> None:
    with httpx.Client(base_url=live_stack.base_url, timeout=HEAR_SECONDS) as http:
        assert http.get("/livez").status_code == 200
        assert http.get("/readyz").status_code == 200
        text = http.get("/metrics").text
    assert "headrace_time_to_first_token_seconds_count" in text
    assert "django_http_requests_total" in text


def test_the_same_key_gives_the_same_bytes_from_the_beginning(client: openai.OpenAI, probe: StreamProbe) -> None:
    """The first reader leaves in mid-answer; the package repeats the request while it runs, and after its end."""

    def chunks(limit: int | None = None) -> list[str]:
        stream = client.chat.completions.create(
            model="slow",
            messages=ASK,
            max_tokens=40,
            stream=True,
            extra_body={"ignore_eos": True},
            extra_headers={"Idempotency-Key": "of the package's test"},
        )
        with stream:
            return [chunk.to_json(indent=None) for chunk in itertools.islice(stream, limit)]

    begun, running, ended = chunks(12), chunks(), chunks()
    first, again, replayed = ([json.loads(text) for text in told] for told in (begun, running, ended))
    assert len({(c["id"], c["created"], c["model"]) for c in (*first, *again, *replayed)}) == 1
    texts = ["".join(c["choices"][0]["delta"].get("content", "") for c in told) for told in (first, again, replayed)]
    assert (
        texts[1].encode()
        == texts[2].encode()
        == probe.text("strm-" + first[0]["id"].removeprefix("chatcmpl-")).encode()
    )
    assert texts[0]
    assert texts[1].startswith(texts[0])
    assert again[-1] == replayed[-1]
    assert again[-1]["choices"][0]["finish_reason"] == "length"
