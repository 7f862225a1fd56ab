"""Kept answers and shared streams through HTTP and WebSocket, with real processes."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from headrace_client import HeadraceClient
from tests.support.live_stack import LiveStack
from tests.support.slow_clients import HEAR_SECONDS
from tests.support.stream_probe import StreamProbe

STATIC = {"use-cache": True}
DEADLINE_SECONDS = 120.0
TOKENS = 240
"""Of `slow`: twelve seconds, in which two callers cancel on a busy machine too."""

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
        frames.append(json.loads(connection.recv(timeout=60)))
    return frames


def test_a_kept_answer_over_a_websocket_can_be_resumed(api: httpx.Client, live_stack: LiveStack) -> None:
    kept = ask_until_kept(api, "Say it over there.").json()
    headers = {"Authorization": f"Bearer {live_stack.api_key}"}
    options: dict[str, Any] = {"subprotocols": ["headrace.v1"], "open_timeout": HEAR_SECONDS}
    with connect(live_stack.ws_url, additional_headers=headers, **options) as socket:
        socket.send(json.dumps({"type": "generate", **body("Say it over there.")}))
        frames = heard(socket, "end")
        text = kept["choices"][0]["message"]["content"]
        assert "".join(frame["text"] for frame in frames if frame["type"] == "delta") == text
        assert [frame["cache"] for frame in frames if frame["type"] in ("started", "end")] == ["hit", "hit"]
        assert frames[-1]["usage"]["completion_tokens"] == kept["usage"]["completion_tokens"] == 12
        socket.send(json.dumps({"type": "resume", "stream_id": frames[0]["stream_id"], "after": 0}))
        again = heard(socket, "end")
        assert "".join(frame["text"] for frame in again if frame["type"] == "delta") == text
        assert "cache" not in again[-1], "what it was is not known of a stream that is resumed"
    with HeadraceClient(live_stack.base_url, live_stack.api_key) as client:
        stream = client.generate("quick", [{"role": "user", "content": "Say it to nobody else."}], max_tokens=3)
        stream.read()
        assert stream.cache == "bypass", "nobody asked for it"


class Reader:
    """A streamed request."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.began: asyncio.Future[httpx.Headers] = asyncio.get_running_loop().create_future()
        """Its headers, once the first text is there."""
        self.text = ""

    async def run(self) -> None:
        """Read to the end."""
        fields = body("Tell it to all of us.", model="slow", stream=True, max_tokens=TOKENS)
        async with self._client.stream("POST", "/chat/completions", json=fields) as answer:
            async for line in answer.aiter_lines():
                self.text += line + "\n\n" if line.startswith("data: ") else ""
                if '"content":"' in line and not self.began.done():
                    self.began.set_result(answer.headers)


async def ask_all(client: httpx.AsyncClient, count: int) -> tuple[list[Reader], dict[str, Reader]]:
    """Ask the same of `count` callers; the one who started the stream and another one cancel while it runs.

    Returns all who stayed, and those two by their stream ids, the starter first.
    """
    readers = [Reader(client) for _ in range(count)]
    left: dict[str, Reader] = {}
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(reader.run())
        pending = {reader.began for reader in readers}
        words: dict[str, Reader] = {}
        while len(words) < 2:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            words = {r.began.result()["x-headrace-cache"]: r for r in readers if r.began.done()}
        for word in ("miss", "hit"):
            stream_id = words[word].began.result()["x-headrace-stream-id"]
            (await client.delete(f"/streams/{stream_id}")).raise_for_status()
            left[stream_id] = words[word]
    assert sorted(reader.began.result()["x-headrace-cache"] for reader in readers) == ["hit"] * (count - 1) + ["miss"]
    return [reader for reader in readers if reader not in left.values()], left


def test_50_callers_run_the_engine_once_and_two_that_cancel_disturb_nobody(
    api: httpx.Client, live_stack: LiveStack
) -> None:
    probe = StreamProbe(live_stack.redis_url)
    before = probe.stream_ids()

    async def run() -> tuple[list[Reader], dict[str, Reader]]:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=api.base_url, headers=api.headers, timeout=60, limits=limits) as client:
            return await ask_all(client, 50)

    stayed, left = asyncio.run(run())
    host = next(iter(left))
    assert probe.stream_ids() - before == {host}, "one log, so one stream for the engine"
    assert probe.token_count(host) == TOKENS
    assert len(stayed) == 48
    assert {text_of(events(reader.text)) for reader in stayed} == {probe.text(host)}
    for reader in left.values():
        assert '"code":"stream_cancelled"' in reader.text
        assert "[DONE]" not in reader.text
