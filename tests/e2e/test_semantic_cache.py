"""Answers to questions that ask for the same, through HTTP, SSE and WebSocket, with real processes."""

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

DEADLINE_SECONDS = 120.0
MODEL = "small"
SWITCH_ON = f"""
from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.caching.models import ResponseCachePolicy
from apps.caching.response_services import response_cache_create
from apps.deployments.models import ModelDeployment
from apps.tenants.models import Tenant
from apps.tenants.services import tenant_create
demo = Tenant.objects.get(slug="demo")
neighbour = tenant_create(tenant=Tenant(name="Alike", slug="alike"))
for tenant in (demo, neighbour):
    response_cache_create(policy=ResponseCachePolicy(
        tenant=tenant, deployment=ModelDeployment.objects.get(name="{MODEL}"), static_rule="opt_in", semantic=True
    ))
print(api_key_create(api_key=ApiKey(tenant=neighbour, name="alike"))[1].reveal())
"""
CHANGE = f"""
from apps.caching.models import ResponseCachePolicy
from apps.caching.response_services import response_cache_purge, response_cache_update
policy = ResponseCachePolicy.all_tenants.get(tenant__slug="demo", deployment__name="{MODEL}")
"""


class Tenants:
    """Clients of the tenant whose questions are compared, and of its neighbour, who does likewise."""

    def __init__(self, stack: LiveStack, mine: httpx.Client, theirs: httpx.Client) -> None:
        self.stack, self.mine, self.theirs = stack, mine, theirs


@pytest.fixture(scope="module")
def tenants(live_stack: LiveStack) -> Iterator[Tenants]:
    neighbour = live_stack.run_django(SWITCH_ON).strip().splitlines()[-1]
    base = f"{live_stack.base_url}/v1"
    with (
        httpx.Client(base_url=base, headers={"Authorization": f"Bearer {live_stack.api_key}"}, timeout=60) as mine,
        httpx.Client(base_url=base, headers={"Authorization": f"Bearer {neighbour}"}, timeout=60) as theirs,
    ):
        yield Tenants(live_stack, mine, theirs)


def body(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "cache": {"use-cache": True}, **fields}


def ask(client: httpx.Client, text: str, **fields: Any) -> httpx.Response:
    answer = client.post("/chat/completions", json=body(text, **fields))
    answer.raise_for_status()
    return answer


def word_of(answer: httpx.Response) -> str:
    return answer.headers["x-headrace-cache"]


def ask_until_found(client: httpx.Client, first: str, alike: str) -> httpx.Response:
    """Ask until another question's answer is given: the model may be loading, and answers are kept at their end."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    anew = {"use-cache": True, "no-cache": True}
    once = {"use-cache": True, "no-store": True}
    while word_of(answer := ask(client, alike, cache=once)) != "semantic":
        assert time.monotonic() < deadline, "nothing is found"
        ask(client, first, cache=anew)
    return answer


def text_of(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def test_a_question_in_other_words_in_one_piece_and_streamed(tenants: Tenants) -> None:
    found = ask_until_found(tenants.mine, "How do I reset my password?", "How can I reset my password?")
    assert 0.95 <= float(found.headers["x-headrace-cache-similarity"]) < 1
    assert int(found.headers["age"]) >= 0
    exact = ask(tenants.mine, "How do I reset my password?")
    assert word_of(exact) == "hit"
    assert "x-headrace-cache-similarity" not in exact.headers
    assert text_of(exact) == text_of(found)
    assert exact.json()["usage"] == found.json()["usage"]
    once = {"use-cache": True, "no-store": True}
    streamed = ask(tenants.mine, "How could I reset my password?", stream=True, cache=once)
    assert word_of(streamed) == "semantic"
    assert float(streamed.headers["x-headrace-cache-similarity"]) >= 0.95
    events = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    told = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert told == text_of(found)
    for other in ("How do I reset my phone?", "How do I reset my password in 2026?", "How do I not reset my password?"):
        assert word_of(ask(tenants.mine, other, cache=once)) == "miss", other
    exact_only = {"use-cache": True, "semantic": False, "no-store": True}
    assert word_of(ask(tenants.mine, "How can I reset my password?", cache=exact_only)) == "miss"


def heard(connection: ClientConnection) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = []
    while not frames or frames[-1]["type"] not in ("end", "error"):
        frames.append(json.loads(connection.recv(timeout=HEAR_SECONDS)))
    return frames


def test_a_question_in_other_words_over_a_websocket(tenants: Tenants) -> None:
    found = ask_until_found(tenants.mine, "Where is my order?", "Where is the my order?")
    headers = {"Authorization": f"Bearer {tenants.stack.api_key}"}
    once = {"use-cache": True, "no-store": True}
    options: dict[str, Any] = {"subprotocols": ["headrace.v1"], "open_timeout": HEAR_SECONDS}
    with connect(tenants.stack.ws_url, additional_headers=headers, **options) as socket:
        socket.send(json.dumps({"type": "generate", **body("Where is the my order?", cache=once)}))
        frames = heard(socket)
    assert "".join(frame["text"] for frame in frames if frame["type"] == "delta") == text_of(found)
    told = [(frame["cache"], frame["cache_similarity"]) for frame in frames if frame["type"] in ("started", "end")]
    assert [word for word, _ in told] == ["semantic", "semantic"]
    assert told[0][1] == float(found.headers["x-headrace-cache-similarity"])
    with HeadraceClient(tenants.stack.base_url, tenants.stack.api_key) as client:
        fields = body("Where is the my order?", cache=once)
        stream = client.generate(fields.pop("model"), fields.pop("messages"), **fields)
        stream.read()
        assert (stream.cache, stream.cache_similarity) == told[0]


def test_another_tenant_and_what_is_stale(tenants: Tenants) -> None:
    first, alike = "When does the tide turn?", "When does a tide turn?"
    once = {"use-cache": True, "no-store": True}
    ask_until_found(tenants.mine, first, alike)
    assert word_of(ask(tenants.theirs, alike, cache=once)) == "miss"
    assert word_of(ask(tenants.theirs, first, cache=once)) == "miss"
    ask_until_found(tenants.theirs, first, alike)
    system = [{"role": "system", "content": "Be verbose."}, {"role": "user", "content": alike}]
    assert word_of(ask(tenants.mine, alike, messages=system, cache=once)) == "miss"
    assert word_of(ask(tenants.mine, alike, max_tokens=7, cache=once)) == "miss"
    tenants.stack.run_django(CHANGE + "response_cache_purge(policy=policy)")
    assert word_of(ask(tenants.mine, alike, cache=once)) == "miss"
    assert word_of(ask(tenants.theirs, alike, cache=once)) == "semantic", "a purge is the tenant's own"
    ask_until_found(tenants.mine, first, alike)
    tenants.stack.run_django(CHANGE + "policy.semantic = False\nresponse_cache_update(policy=policy)")
    assert word_of(ask(tenants.mine, alike, cache=once)) == "miss"
    assert word_of(ask(tenants.mine, first, cache=once)) == "hit"
