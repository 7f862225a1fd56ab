"""Guardrails over real sockets: what a policy blocks or masks is on no route, live or replayed.

The simulated engine answers with one sentence that holds a phrase to be blocked and a card number, token by token
(its tokens are bytes, so every character is cut from every other).
"""

import ast
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from apps.api.protocol import Frame
from headrace_client import HeadraceClient
from headrace_wire import redis_keys
from headrace_wire.intervention_log import decode_intervention
from headrace_wire.interventions import Intervention, Outcome
from headrace_wire.messages import StreamState
from tests.support.environment import REPOSITORY_ROOT
from tests.support.live_stack import LiveStack
from tests.support.signing_in import sign_in
from tests.support.stream_probe import DEADLINE_SECONDS, StreamProbe

SECRET = "open the sluice"
CARD = "4111 1111 1111 1111"
BEFORE = "The weir is old, and nobody "
ANSWER = f"{BEFORE}may say: {SECRET} at dawn. Pay with {CARD}, then row home."
INSTEAD = "This was withheld."
ASK: Any = [{"role": "user", "content": "Tell me of the weir."}]

SET_UP = f"""
import json
from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_create
from apps.guardrails.models import GuardrailAttachment, GuardrailPolicy, GuardrailRule
from apps.guardrails.services import policy_save
from apps.tenants.models import Tenant

engine = {{"ttft_ms": 10, "tpot_ms": 3, "answer": {ANSWER!r}}}
made = {{}}
for name in ("open-weir", "guarded-weir"):
    deployment = ModelDeployment(name=name, model="simulated", engine="simulated", engine_args=engine)
    made[name] = deployment_create(deployment=deployment) or deployment
tenant = Tenant.objects.get(slug="demo")
keys = {{}}
for name in ("blocked", "masked", "free", "refused", "answered", "changing"):
    keys[name] = api_key_create(api_key=ApiKey(tenant=tenant, name=name))
block = dict(kind="literals", words=[{SECRET!r}], action="block")
mask = dict(kind="personal_data", personal_data={{"CREDIT_CARD": "mask"}}, action="mask")

def policy(name, fields, where, **more):
    row = GuardrailPolicy(tenant=tenant, name=name, mode="enforced", replacement={INSTEAD!r}, **more)
    policy_save(policy=row, rules=[GuardrailRule(**fields)], attachments=[GuardrailAttachment(**at) for at in where])

policy("No sluice", block, [dict(api_key=keys["blocked"][0]), dict(deployment=made["guarded-weir"])])
policy("No cards", mask, [dict(api_key=keys["masked"][0])])
policy("Not asked", dict(block, applies_to="both"), [dict(api_key=keys["refused"][0])])
policy("Not asked, told", dict(block, applies_to="both"), [dict(api_key=keys["answered"][0])], on_input_trip="replace")
policy("Changing", dict(block, words=["heron"]), [dict(api_key=keys["changing"][0])])
print(json.dumps({{name: token.reveal() for name, (_, token) in keys.items()}}))
"""


@dataclass(frozen=True)
class Guarded:
    """The stack, with keys under different policies for the deployment `open-weir`; `guarded-weir` has its own."""

    stack: LiveStack
    keys: dict[str, str]

    def http(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        return httpx.Client(base_url=self.stack.base_url, headers=headers, timeout=30)

    def openai(self, key: str) -> OpenAI:
        return OpenAI(base_url=f"{self.stack.base_url}/v1", api_key=self.keys[key], max_retries=0)

    def socket(self, key: str) -> ClientConnection:
        return connect(
            self.stack.ws_url,
            subprotocols=[Subprotocol("headrace.v1")],
            additional_headers={"Authorization": f"Bearer {self.keys[key]}"},
        )

    def plain(self, key: str, model: str = "open-weir", messages: Any = ASK) -> httpx.Response:
        with self.http(key) as http:
            body = {"model": model, "messages": messages, "max_tokens": len(ANSWER)}
            return http.post("/v1/chat/completions", json=body)


@pytest.fixture(scope="module")
def guarded(live_stack: LiveStack) -> Iterator[Guarded]:
    keys = json.loads(live_stack.run_django(SET_UP).splitlines()[-1])
    workers = [live_stack.start_worker(name) for name in ("open-weir", "guarded-weir")]
    yield Guarded(live_stack, keys)
    for worker in workers:
        worker.stop()


@pytest.fixture
def probe(live_stack: LiveStack) -> StreamProbe:
    return StreamProbe(live_stack.redis_url)


def interventions(probe: StreamProbe, stream_id: str) -> list[Intervention]:
    """Return what was recorded of a stream; the record is written beside the stream, so wait for the first."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        rows: Any = probe.redis.xrange(redis_keys.interventions_key())
        records = [decode_intervention(fields[b"d"]) for _, fields in rows]
        if found := [record for record in records if record.stream_id == stream_id]:
            return found
        assert time.monotonic() < deadline, "nothing is recorded"
        time.sleep(0.05)


def clean(text: str) -> bool:
    """Whether nothing of what is to be withheld is in a text."""
    return SECRET not in text and "sluice" not in text and "open the" not in text


# ---- each way of getting an answer


def test_a_plain_answer_ends_before_the_phrase(guarded: Guarded, probe: StreamProbe) -> None:
    answer = guarded.plain("blocked")
    assert answer.status_code == 200
    assert answer.headers["x-headrace-applied-guardrails"] == "No sluice"
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "content_filter"
    assert choice["message"]["content"] == f"{BEFORE}may say: \n\n{INSTEAD}"
    stream_id = answer.headers["x-headrace-stream-id"]
    assert probe.wait_for_end(stream_id).state is StreamState.REPLACED
    assert clean(probe.text(stream_id))
    assert [record.outcome for record in interventions(probe, stream_id)] == [Outcome.BLOCKED]


def test_the_openai_client_reads_a_filtered_stream(guarded: Guarded) -> None:
    with guarded.openai("blocked") as client:
        chunks = list(
            client.chat.completions.create(model="open-weir", messages=ASK, max_tokens=len(ANSWER), stream=True)
        )
    assert chunks[-1].choices[0].finish_reason == "content_filter"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == f"{BEFORE}may say: \n\n{INSTEAD}"


def test_a_websocket_reads_the_replacement_before_the_end(guarded: Guarded) -> None:
    with guarded.socket("blocked") as socket:
        socket.send(json.dumps({"type": "generate", "model": "open-weir", "messages": ASK, "max_tokens": len(ANSWER)}))
        frames = [json.loads(socket.recv(timeout=60))]
        while frames[-1]["type"] != "end":
            frames.append(json.loads(socket.recv(timeout=60)))
    assert [frame["type"] for frame in frames[-2:]] == ["replacement", "end"]
    assert (frames[-1]["state"], frames[-1]["finish_reason"]) == ("replaced", "content_filter")
    assert clean(json.dumps(frames))


def test_the_client_library_has_the_replacement_as_text(guarded: Guarded) -> None:
    with HeadraceClient(guarded.stack.base_url, guarded.keys["blocked"]) as client:
        stream = client.generate(model="open-weir", messages=ASK, max_tokens=len(ANSWER))
        printed = "".join(delta.text for delta in stream)
    assert printed == stream.text == f"{BEFORE}may say: \n\n{INSTEAD}"
    assert stream.finish_reason == "content_filter"


def test_a_resume_at_any_cursor_reads_nothing_of_it(guarded: Guarded, probe: StreamProbe) -> None:
    with guarded.http("blocked") as http:
        body = {"model": "open-weir", "messages": ASK, "max_tokens": len(ANSWER)}
        stream_id = http.post("/v1/chat/completions", json=body).headers["x-headrace-stream-id"]
        for after in [0, *(entry.seq for entry in probe.deltas(stream_id))]:
            replayed = http.get(f"/v1/streams/{stream_id}/events", params={"after": after}).text
            assert clean(replayed)
            assert '"type":"replacement"' in replayed, "a late cursor gets it too"


def test_a_mask_replaces_the_number_and_the_rest_goes_on(guarded: Guarded) -> None:
    text = guarded.plain("masked").json()["choices"][0]["message"]["content"]
    assert CARD not in text
    assert "1111" not in text
    before, after = ANSWER.split(CARD)
    assert text.startswith(before)
    assert text.endswith(after)


def test_a_key_without_a_policy_reads_all(guarded: Guarded) -> None:
    answer = guarded.plain("free")
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER
    assert "x-headrace-applied-guardrails" not in answer.headers


CHANGE = f"""
import time
from apps.guardrails.models import GuardrailPolicy, GuardrailRule
from apps.guardrails.services import policy_save
policy = GuardrailPolicy.all_tenants.get(name="Changing")
policy_save(policy=policy, rules=[GuardrailRule(kind="literals", words=[{SECRET!r}], action="block")])
print(time.time())
"""


def test_a_change_acts_on_new_streams_within_a_second(guarded: Guarded) -> None:
    """Requests go on all the while; what was asked a second after the change, or later, is judged by it."""
    asked: list[tuple[float, str]] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            at = time.time()
            asked.append((at, guarded.plain("changing").json()["choices"][0]["finish_reason"]))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        changed_at = float(guarded.stack.run_django(CHANGE).splitlines()[-1])
        while not asked or asked[-1][0] < changed_at + 1.5:
            done.wait(0.05)
    finally:
        done.set()
        asking.join()
    assert asked[0][1] == "length", "before"
    late = [reason for at, reason in asked if at >= changed_at + 1.0]
    assert late
    assert set(late) == {"content_filter"}


# ---- requests


def test_a_blocked_request_is_refused_before_anything_is_counted(guarded: Guarded, probe: StreamProbe) -> None:
    before = probe.stream_ids()
    asked = [{"role": "user", "content": "Please OPEN  the slu\u200bice"}]
    with guarded.openai("refused") as client, pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model="open-weir", messages=asked, stream=True)  # type: ignore[arg-type]
    assert refused.value.code == "content_filter"
    assert probe.stream_ids() == before


def test_a_blocked_request_may_be_answered_with_the_replacement(guarded: Guarded, probe: StreamProbe) -> None:
    answer = guarded.plain("answered", messages=[{"role": "user", "content": SECRET}])
    (choice,) = answer.json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (INSTEAD, "content_filter")
    assert answer.json()["usage"]["completion_tokens"] == 0
    assert probe.wait_for_end(answer.headers["x-headrace-stream-id"]).state is StreamState.REPLACED


def test_an_earlier_message_that_would_be_blocked_today_is_left_out(guarded: Guarded) -> None:
    messages = [{"role": "user", "content": SECRET}, {"role": "assistant", "content": "No."}, *ASK]
    assert guarded.plain("refused", messages=messages).json()["choices"][0]["finish_reason"] == "content_filter"


def test_a_request_that_ends_with_an_answer_to_go_on_with_is_judged_too(guarded: Guarded) -> None:
    begun = [{"role": "user", "content": SECRET}, {"role": "assistant", "content": "Sure: "}]
    assert guarded.plain("refused", messages=begun).json()["error"]["code"] == "content_filter"
    begun = [*ASK, {"role": "assistant", "content": f"Sure, {SECRET}"}]
    assert guarded.plain("refused", messages=begun).json()["error"]["code"] == "content_filter"


# ---- no route without a guard


def v1_routes() -> set[str]:
    """Return the patterns of the thin application's routes, from its source."""
    source = ast.parse((REPOSITORY_ROOT / "apps/api/asgi.py").read_text())
    cases = [case for node in ast.walk(source) if isinstance(node, ast.Match) for case in node.cases]
    return {ast.unparse(case.pattern) for case in cases} - {"_"}


def django_routes() -> set[str]:
    """Return the routes that the chat serves, from its table."""
    source = (REPOSITORY_ROOT / "apps/chat/urls.py").read_text()
    return set(re.findall(r'name="(\w+)"', source))


def socket_frames() -> set[str]:
    """Return the frames that a client may send."""
    return {str(kind.__struct_config__.tag) for kind in Frame.__args__}


class Attacker:
    """Asks `guarded-weir`, which always gives the phrase away, and keeps every byte that comes back."""

    def __init__(self, guarded: Guarded, http: httpx.Client) -> None:
        self.guarded = guarded
        self.http = http
        body = {"model": "guarded-weir", "messages": ASK, "max_tokens": len(ANSWER)}
        self.body = body
        self.stream_id = self.http.post("/v1/chat/completions", json=body).headers["x-headrace-stream-id"]

    def completions(self) -> str:
        plain = self.http.post("/v1/chat/completions", json=self.body).text
        return plain + self.http.post("/v1/chat/completions", json={**self.body, "stream": True}).text

    def get(self, path: str) -> Callable[[], str]:
        return lambda: self.http.get(path.format(stream_id=self.stream_id)).text

    def post(self, path: str) -> Callable[[], str]:
        return lambda: self.http.post(path.format(stream_id=self.stream_id)).text

    def frames(self, frame: dict[str, Any]) -> Callable[[], str]:
        def run() -> str:
            with self.guarded.socket("free") as socket:
                socket.send(json.dumps(frame))
                if frame["type"] not in {"generate", "resume"}:
                    socket.send(json.dumps({"type": "resume", "stream_id": self.stream_id}))
                heard = [socket.recv(timeout=60)]
                while json.loads(heard[-1])["type"] not in {"end", "error"}:
                    heard.append(socket.recv(timeout=60))
                return "".join(str(frame) for frame in heard)

        return run


@pytest.fixture
def attacker(guarded: Guarded) -> Iterator[Attacker]:
    with guarded.http("free") as http:
        yield Attacker(guarded, http)


def test_no_route_of_the_api_gives_away_what_a_policy_blocks(attacker: Attacker) -> None:
    by_route = {
        "['chat', 'completions']": attacker.completions,
        "['models']": attacker.get("/v1/models"),
        "['models', *name]": attacker.get("/v1/models/guarded-weir"),
        "['usage']": attacker.get("/v1/usage"),
        "['streams', stream_id, *rest]": attacker.get("/v1/streams/{stream_id}"),
        "[]": attacker.get("/v1/streams/{stream_id}"),
        "['events']": attacker.get("/v1/streams/{stream_id}/events"),
        "['ticket']": attacker.post("/v1/streams/{stream_id}/ticket"),
        "['cancel']": attacker.post("/v1/streams/{stream_id}/cancel"),
    }
    assert v1_routes() == by_route.keys(), "a new route needs a line here: show what it gives away"
    for route, attack in by_route.items():
        assert clean(attack()), route


def test_no_frame_of_the_websocket_gives_it_away(attacker: Attacker) -> None:
    stream = {"stream_id": attacker.stream_id}
    by_frame = {
        "generate": attacker.frames({"type": "generate", **attacker.body}),
        "resume": attacker.frames({"type": "resume", **stream}),
        "cancel": attacker.frames({"type": "cancel", **stream}),
        "ack": attacker.frames({"type": "ack", **stream, "seq": 1}),
        "draft": attacker.frames({"type": "draft", "model": "guarded-weir", "messages": ASK * 9, "text": "And then?"}),
    }
    assert socket_frames() == by_frame.keys(), "a new frame needs a line here: show what it gives away"
    for kind, attack in by_frame.items():
        assert clean(attack()), kind


@pytest.fixture
def browser_http(live_stack: LiveStack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live_stack.base_url, timeout=30, follow_redirects=True) as http:
        sign_in(http, live_stack)
        yield http


def test_no_route_of_the_chat_gives_it_away(guarded: Guarded, browser_http: httpx.Client, probe: StreamProbe) -> None:
    http = browser_http
    conversation, turn = str(uuid.uuid4()), str(uuid.uuid4())
    sent = http.post(
        f"/chat/conversations/{conversation}/turns",
        json={"turn_id": turn, "text": "Tell me of the weir.", "model": "guarded-weir"},
    )
    assert sent.status_code in {200, 201}, sent.text
    answer = sent.json()["answer"]
    assert probe.wait_for_end(answer["stream_id"]).state is StreamState.REPLACED
    message = f"/chat/conversations/{conversation}/messages/{answer['id']}"
    by_route: dict[str, Callable[[], str]] = {
        "page": lambda: http.get("/").text,
        "conversation_page": lambda: http.get(f"/c/{conversation}").text,
        "ticket": lambda: http.get("/chat/ticket").text,
        "models": lambda: http.get("/chat/models").text,
        "conversations": lambda: http.get("/chat/conversations").text,
        "turns": lambda: sent.text,
        "collect": lambda: http.post(f"{message}/collect").text,
        "conversation": lambda: http.get(f"/chat/conversations/{conversation}").text,
        "stop": lambda: http.post(f"{message}/stop").text,
        "retry": lambda: http.post(f"{message}/retry", json={"model": "guarded-weir"}).text,
    }
    assert django_routes() == by_route.keys(), "a new route needs a line here: show what it gives away"
    seen = {route: attack() for route, attack in by_route.items()}
    for route, text in seen.items():
        assert clean(text), route
    assert INSTEAD in seen["conversation"], "the stored answer is the replaced one"
