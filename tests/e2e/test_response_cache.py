"""Kept answers and shared streams through HTTP and WebSocket, with real processes."""

import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.live_stack import LiveStack
from tests.support.stream_probe import StreamProbe

STATIC = {"use-cache": True}
DEADLINE_SECONDS = 30.0

SWITCH_ON = """
from apps.caching.models import ResponseCachePolicy
from apps.caching.response_services import response_cache_create
from apps.tenants.models import Tenant
for tenant in Tenant.objects.all():
    response_cache_create(policy=ResponseCachePolicy(tenant=tenant, static_rule="opt_in"))
"""


@pytest.fixture(scope="module")
def api(live_stack: LiveStack) -> Iterator[httpx.Client]:
    """A client of a tenant whose answers are kept where a request asks for it: other tests' do not."""
    live_stack.run_django(SWITCH_ON)
    headers = {"Authorization": f"Bearer {live_stack.api_key}"}
    with httpx.Client(base_url=f"{live_stack.base_url}/v1", headers=headers, timeout=60) as client:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while ask(client, "Is it on?").headers["x-headrace-cache"] == "bypass":
            assert time.monotonic() < deadline, "the gateway does not hear of the policy"
        yield client


def body(text: str, model: str = "quick", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": 12, "cache": STATIC, **fields}


def ask(client: httpx.Client, text: str, **fields: Any) -> httpx.Response:
    answer = client.post("/chat/completions", json=body(text, **fields))
    answer.raise_for_status()
    return answer


def ask_until_kept(client: httpx.Client, text: str, **fields: Any) -> httpx.Response:
    """Ask again until the answer comes from the cache: it is written just after the first one has ended."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (answer := ask(client, text, **fields)).headers["x-headrace-cache"] != "hit":
        assert time.monotonic() < deadline, "nothing is kept"
    return answer


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def test_a_kept_answer_in_one_piece_and_streamed(api: httpx.Client) -> None:
    first = ask(api, "Say it twice.")
    assert first.headers["x-headrace-cache"] == "miss"
    assert "age" not in first.headers
    again = ask_until_kept(api, "Say it twice.")
    assert int(again.headers["age"]) >= 0
    assert again.json()["choices"] == first.json()["choices"]
    assert again.json()["usage"] == first.json()["usage"]
    assert again.json()["id"] != first.json()["id"]
    streamed = ask(api, "Say it twice.", stream=True, stream_options={"include_usage": True})
    assert streamed.headers["x-headrace-cache"] == "hit"
    chunks = events(streamed.text)
    assert text_of(chunks) == first.json()["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == first.json()["usage"]


def test_headers_and_fields_of_a_request_count(api: httpx.Client) -> None:
    ask_until_kept(api, "Say it thrice.")
    fresh = api.post("/chat/completions", json=body("Say it thrice."), headers={"Cache-Control": "no-cache"})
    assert fresh.headers["x-headrace-cache"] == "miss"
    wrong = api.post("/chat/completions", json=body("Say it thrice.", cache={"ttl": -5}))
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "cache.ttl"
    assert ask(api, "Say it thrice.", user="anna").headers["x-headrace-cache"] == "bypass"


def heard(connection: ClientConnection, kind: str) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = []
    while not frames or frames[-1]["type"] != kind:
        frames.append(json.loads(connection.recv(timeout=20)))
    return frames


def test_a_kept_answer_over_a_websocket_can_be_resumed(api: httpx.Client, live_stack: LiveStack) -> None:
    kept = ask_until_kept(api, "Say it over there.").json()
    headers = {"Authorization": f"Bearer {live_stack.api_key}"}
    with connect(live_stack.ws_url, subprotocols=["headrace.v1"], additional_headers=headers) as socket:  # type: ignore[list-item]
        socket.send(json.dumps({"type": "generate", **body("Say it over there.")}))
        frames = heard(socket, "end")
        text = kept["choices"][0]["message"]["content"]
        assert "".join(frame["text"] for frame in frames if frame["type"] == "delta") == text
        assert frames[-1]["usage"]["completion_tokens"] == kept["usage"]["completion_tokens"] == 12
        socket.send(json.dumps({"type": "resume", "stream_id": frames[0]["stream_id"], "after": 0}))
        again = heard(socket, "end")
        assert "".join(frame["text"] for frame in again if frame["type"] == "delta") == text


class Reader(threading.Thread):
    """A streamed request in a thread of its own."""

    def __init__(self, client: httpx.Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self.began: queue.Queue[httpx.Headers] = queue.Queue()
        self.text = ""

    def run(self) -> None:
        """Reads to the end."""
        fields = body("Tell it to all of us.", model="slow", stream=True, max_tokens=40)
        with self._client.stream("POST", "/chat/completions", json=fields) as answer:
            for line in answer.iter_lines():
                self.text += line + "\n\n" if line.startswith("data: ") else ""
                if '"content":"' in line and self.began.empty():
                    self.began.put(answer.headers)


def test_one_of_many_callers_cancels(api: httpx.Client, live_stack: LiveStack) -> None:
    probe = StreamProbe(live_stack.redis_url)
    readers = [Reader(api) for _ in range(6)]
    for reader in readers:
        reader.start()
    headers = [reader.began.get(timeout=DEADLINE_SECONDS) for reader in readers]
    assert sorted(one["x-headrace-cache"] for one in headers) == ["hit"] * 5 + ["miss"]
    host = next(i for i, one in enumerate(headers) if one["x-headrace-cache"] == "miss")
    rider = (host + 1) % len(readers)
    for leaver in (host, rider):
        api.delete(f"/streams/{headers[leaver]['x-headrace-stream-id']}").raise_for_status()
    for reader in readers:
        reader.join(DEADLINE_SECONDS)
    whole = [reader for i, reader in enumerate(readers) if i not in (host, rider)]
    texts = {text_of(events(reader.text)) for reader in whole}
    assert texts == {probe.text(headers[host]["x-headrace-stream-id"])}
    for leaver in (host, rider):
        assert '"code":"stream_cancelled"' in readers[leaver].text
        assert "[DONE]" not in readers[leaver].text
