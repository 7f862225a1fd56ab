"""Drafts over real sockets: what was computed while a message was typed is found when it is sent, by its tenant."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from headrace_client import End, HeadraceClient
from headrace_wire.prefix_hashes import BLOCK_TOKENS
from tests.support.live_stack import LiveStack
from tests.support.metrics import gateway_metric, wait_for, worker_metric
from tests.support.slow_clients import HEAR_SECONDS, MODEL

HISTORY: Any = [
    {"role": "user", "content": "What is a headrace?"},
    {"role": "assistant", "content": "The channel that leads water to the wheel. " * 10},
]

OTHER_TENANT = """
from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.tenants.models import Tenant
from apps.tenants.services import tenant_create

tenant = Tenant(slug="neighbour", name="Neighbour")
tenant_create(tenant=tenant)
print(api_key_create(api_key=ApiKey(tenant=tenant, name="neighbour"))[1].reveal())
"""

SETTINGS = """
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_update
row = ModelDeployment.objects.get(name={name!r})
row.prefills_drafts = {value}
deployment_update(deployment=row)
"""


def typed(beginning: str) -> str:
    """Return a text that no other test has the engine compute."""
    return f"{beginning}: and where does the water go when it leaves the mill? " * 12


def drafts_done(stack: LiveStack) -> Callable[[], float]:
    return lambda: worker_metric(stack, "headrace_worker_prefills_ended_total", purpose="draft", outcome="done")


def draft(client: HeadraceClient, stack: LiveStack, text: str) -> None:
    """Have a draft computed."""
    before = drafts_done(stack)()
    client.draft(MODEL, HISTORY, text)
    wait_for(drafts_done(stack), before + 1)


def send(client: HeadraceClient, text: str) -> End:
    with client.generate(MODEL, [*HISTORY, {"role": "user", "content": text}], max_tokens=4, temperature=0) as stream:
        stream.read()
    assert stream.end is not None
    return stream.end


@pytest.fixture(scope="module")
def neighbour_key(engine_stack: LiveStack) -> str:
    return engine_stack.run_django(OTHER_TENANT).splitlines()[-1]


# ---- the real engine


@pytest.mark.engine
def test_a_draft_is_found_by_the_prompt_that_goes_on_from_it(engine_stack: LiveStack) -> None:
    hits = "headrace_drafts_settled_total"
    before = gateway_metric(engine_stack, hits, outcome="hit")
    with HeadraceClient(engine_stack.base_url, engine_stack.api_key) as client:
        text = typed("found")
        draft(client, engine_stack, text[: len(text) // 2])
        draft(client, engine_stack, text)
        usage = send(client, f"{text} Tell me.").usage
    assert usage.prompt_tokens - 2 * BLOCK_TOKENS < usage.cached_tokens < usage.prompt_tokens
    assert gateway_metric(engine_stack, hits, outcome="hit") == before + 1
    assert gateway_metric(engine_stack, "headrace_drafted_time_to_first_token_seconds_count") >= 1


@pytest.mark.engine
def test_an_edit_in_the_middle_moves_what_is_found(engine_stack: LiveStack) -> None:
    with HeadraceClient(engine_stack.base_url, engine_stack.api_key) as client:
        text = typed("edited")
        edited = f"{text[: len(text) // 2]} NO! {text}"
        draft(client, engine_stack, text)
        draft(client, engine_stack, edited)
        usage = send(client, edited).usage
        assert usage.prompt_tokens - 2 * BLOCK_TOKENS < usage.cached_tokens
        # Sent without a draft of the edit: what stands before it is found, and no more.
        half = send(client, f"{text[: len(text) // 4]} Otherwise. {text}").usage
    assert half.cached_tokens < half.prompt_tokens // 2


@pytest.mark.engine
def test_a_neighbours_draft_is_not_found(engine_stack: LiveStack, neighbour_key: str) -> None:
    text = typed("a neighbour's")
    with (
        HeadraceClient(engine_stack.base_url, neighbour_key) as neighbour,
        HeadraceClient(engine_stack.base_url, engine_stack.api_key) as client,
    ):
        send(client, "Hello.")  # the history is ours already
        history = send(client, "Hello.").usage.cached_tokens
        draft(neighbour, engine_stack, text)
        assert send(client, text).usage.cached_tokens <= history
        assert send(neighbour, text).usage.cached_tokens > history + 4 * BLOCK_TOKENS


# ---- frames, on the simulated engine


def opened(stack: LiveStack) -> ClientConnection:
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    subprotocols = [Subprotocol("headrace.v1")]
    return connect(stack.ws_url, subprotocols=subprotocols, additional_headers=headers, open_timeout=HEAR_SECONDS)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model": "nothing", "messages": []}, "model_not_found"),
        ({"model": "quick"}, "invalid_request_error"),
        ({"model": "quick", "messages": [], "conversation": ""}, "invalid_request_error"),
        ({"model": "quick", "conversation": "11111111-1111-4111-8111-111111111111"}, "invalid_request_error"),
        ({"model": "quick", "messages": [{"role": "user"}]}, "invalid_request_error"),
    ],
    ids=["unknown model", "no messages", "both", "a key's conversation", "no content"],
)
def test_a_bad_draft_gets_an_error_with_its_ref(live_stack: LiveStack, fields: dict[str, Any], code: str) -> None:
    with opened(live_stack) as socket:
        socket.send(json.dumps({"type": "draft", "ref": "d", "text": "word " * 200, **fields}))
        frame = json.loads(socket.recv(timeout=60))
    assert (frame["type"], frame["ref"], frame["error"]["code"]) == ("error", "d", code)


def test_what_is_said_of_a_draft_is_about_no_stream(live_stack: LiveStack) -> None:
    with HeadraceClient(live_stack.base_url, live_stack.api_key) as client:
        client.draft("nothing", HISTORY, typed("refused"))
        client.draft("quick", HISTORY, typed("taken"))
        with client.generate("quick", HISTORY[:1], max_tokens=5) as stream:
            assert stream.read()


def test_a_deployment_may_want_no_drafts(live_stack: LiveStack) -> None:
    live_stack.run_django(SETTINGS.format(name="teller", value=False))
    try:
        with opened(live_stack) as socket:
            frame: dict[str, Any] = {}
            while not frame:  # the gateway reads the setting within a second
                socket.send(json.dumps({"type": "draft", "model": "teller", "messages": HISTORY, "text": "word " * 99}))
                socket.send(json.dumps({"type": "cancel", "stream_id": "none"}))
                heard = json.loads(socket.recv(timeout=60))
                frame = heard if heard["type"] == "draft_off" else {}
        assert frame["reason"] == "disabled"
        assert "retry_after_ms" not in frame
    finally:
        live_stack.run_django(SETTINGS.format(name="teller", value=True))
