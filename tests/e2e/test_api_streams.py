"""Resume over HTTP: the stream routes, `Last-Event-ID`, and idempotency keys."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from headrace_wire import redis_keys
from headrace_wire.messages import StreamState
from tests.support.live_stack import LiveStack
from tests.support.processes import free_port
from tests.support.slow_clients import HEAR_SECONDS
from tests.support.stream_probe import StreamProbe

ASK: Any = [{"role": "user", "content": "Say something."}]


@dataclass(frozen=True)
class Event:
    id: str
    data: dict[str, Any] | None


@pytest.fixture
def probe(live_stack: LiveStack) -> StreamProbe:
    return StreamProbe(live_stack.redis_url)


@pytest.fixture
def http(live_stack: LiveStack) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {live_stack.api_key}"}
    with httpx.Client(base_url=live_stack.base_url, headers=headers, timeout=HEAR_SECONDS) as client:
        yield client


def finished_stream(http: httpx.Client, **fields: Any) -> str:
    """Let a plain answer of 30 tokens finish; return its stream id."""
    body = {"model": "quick", "messages": ASK, "max_tokens": 30, **fields}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    return str(answer.headers["x-headrace-stream-id"])


def events_of(http: httpx.Client, stream_id: str, **options: Any) -> list[Event]:
    """Follow a stream to its end."""
    events = []
    with http.stream("GET", f"/v1/streams/{stream_id}/events", **options) as answer:
        assert answer.status_code == 200
        event_id = ""
        for line in answer.iter_lines():
            if line.startswith("id: "):
                event_id = line[4:]
            elif line.startswith("data:"):
                events.append(Event(event_id, json.loads(line[6:]) if line[6:] else None))
    return events


def text_of(events: list[Event]) -> str:
    return "".join(e.data["text"] for e in events if e.data and e.data["type"] == "delta")


@pytest.mark.parametrize("after", [0, 1, 13, 29, 30])
def test_events_continue_after_the_cursor(http: httpx.Client, probe: StreamProbe, after: int) -> None:
    stream_id = finished_stream(http)
    by_query = events_of(http, stream_id, params={"after": after})
    by_header = events_of(http, stream_id, headers={"last-event-id": str(after)})
    assert [e.data for e in by_query if e.data and e.data["type"] == "delta"] == [
        e.data for e in by_header if e.data and e.data["type"] == "delta"
    ]
    assert by_query[0] == Event(str(after), None), "an id at once"
    expected = "".join(e.text for e in probe.deltas(stream_id) if e.seq > after)
    assert text_of(by_query) == expected
    assert by_query[-1].data is not None
    assert by_query[-1].data["type"] == "end"
    assert by_query[-1].data["usage"]["completion_tokens"] == 30


def test_everything_delivered_is_no_content(http: httpx.Client) -> None:
    stream_id = finished_stream(http)
    last = events_of(http, stream_id)[-1].id
    assert http.get(f"/v1/streams/{stream_id}/events", headers={"last-event-id": last}).status_code == 204
    beyond = http.get(f"/v1/streams/{stream_id}/events", params={"after": int(last) + 5})
    assert beyond.status_code == 410
    assert beyond.json()["error"]["code"] == "log_rolled_back"


def test_a_cursor_beyond_a_running_stream_is_no_credit_and_no_clean_end(http: httpx.Client) -> None:
    body = {"model": "slow", "messages": ASK, "max_tokens": 100, "stream": True, "ignore_eos": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        stream_id = answer.headers["x-headrace-stream-id"]
        events = events_of(http, stream_id, params={"after": 100_000})
        assert any(line == "data: [DONE]" for line in answer.iter_lines())
    assert http.get(f"/v1/streams/{stream_id}").json()["credit"] < 1000
    last = events[-1].data
    assert last is not None
    assert last["error"]["code"] == "log_rolled_back"


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "9" * 30])
def test_a_bad_cursor_is_refused(http: httpx.Client, after: str) -> None:
    answer = http.get(f"/v1/streams/{finished_stream(http)}/events", params={"after": after})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "after"


def test_a_stream_is_followed_live_from_another_gateway(
    live_stack: LiveStack, http: httpx.Client, probe: StreamProbe
) -> None:
    port = free_port()
    second = live_stack.start_gateway(port)
    try:
        with http.stream(
            "POST", "/v1/chat/completions", json={"model": "slow", "messages": ASK, "max_tokens": 30, "stream": True,
                                                  "ignore_eos": True},
        ) as answer:  # fmt: skip
            stream_id = answer.headers["x-headrace-stream-id"]
            lines = answer.iter_lines()
            next(line for line in lines if '"content":' in line)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=http.headers, timeout=HEAR_SECONDS) as other:
                events = events_of(other, stream_id)
            assert any(line == "data: [DONE]" for line in lines)
        assert text_of(events) == probe.text(stream_id)
    finally:
        second.stop()


def test_unknown_foreign_and_expired_streams(http: httpx.Client, probe: StreamProbe) -> None:
    unknown = http.get("/v1/streams/strm-000000000000000000000000")
    malformed = http.get("/v1/streams/nonsense/events")
    assert unknown.status_code == malformed.status_code == 404
    assert unknown.json()["error"]["code"] == malformed.json()["error"]["code"] == "stream_not_found"
    foreign = finished_stream(http)
    probe.redis.hset(redis_keys.stream_key(foreign), "tenant", "somebody else")
    assert http.get(f"/v1/streams/{foreign}").status_code == 404
    expired = finished_stream(http)
    probe.redis.delete(redis_keys.log_key(expired))
    assert http.post(f"/v1/streams/{foreign}/ticket").json()["error"]["code"] == "stream_not_found"
    for path in (f"/v1/streams/{expired}", f"/v1/streams/{expired}/events"):
        answer = http.get(path)
        assert answer.status_code == 410
        assert answer.json()["error"]["code"] == "stream_expired"


def test_a_ticket_reads_its_stream_and_nothing_else(
    live_stack: LiveStack, http: httpx.Client, probe: StreamProbe
) -> None:
    mine, other = finished_stream(http), finished_stream(http)
    answer = http.post(f"/v1/streams/{mine}/ticket", json={"expires_in": 60})
    assert answer.status_code == 200
    ticket = answer.json()
    with httpx.Client(base_url=live_stack.base_url, timeout=HEAR_SECONDS) as anybody:
        events = events_of(anybody, mine, params={"ticket": ticket["ticket"], "after": 4})
        assert text_of(events) == "".join(e.text for e in probe.deltas(mine) if e.seq > 4)
        with anybody.stream("GET", ticket["url"]) as followed:
            assert followed.headers["access-control-allow-origin"] == "*"
        refused = [
            anybody.get(f"/v1/streams/{other}/events", params={"ticket": ticket["ticket"]}),
            anybody.get(f"/v1/streams/{mine}/events", params={"ticket": ticket["ticket"] + "x"}),
            anybody.get(f"/v1/streams/{mine}", params={"ticket": ticket["ticket"]}),
            anybody.delete(f"/v1/streams/{mine}", params={"ticket": ticket["ticket"]}),
            anybody.post(f"/v1/streams/{mine}/ticket", params={"ticket": ticket["ticket"]}),
        ]
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {(401, "invalid_api_key")}


@pytest.mark.parametrize("body", [{"expires_in": 0}, {"expires_in": 3601}, {"expires_in": "soon"}])
def test_a_ticket_lasts_an_hour_at_most(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post(f"/v1/streams/{finished_stream(http)}/ticket", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "expires_in"


def test_a_stream_tells_its_state(http: httpx.Client) -> None:
    told = http.get(f"/v1/streams/{finished_stream(http)}").json()
    assert (told["state"], told["seq"], told["finish_reason"], told["model"]) == ("finished", 30, "length", "quick")
    assert told["usage"]["completion_tokens"] == 30
    assert told["timings"]["decode_ms"] > 0


def test_delete_and_cancel_stop_a_stream_once(http: httpx.Client, probe: StreamProbe) -> None:
    body = {"model": "slow", "messages": ASK, "max_tokens": 400, "stream": True, "ignore_eos": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        stream_id = answer.headers["x-headrace-stream-id"]
        lines = answer.iter_lines()
        next(line for line in lines if '"content":' in line)
        assert http.delete(f"/v1/streams/{stream_id}").json()["state"] == "cancelling"
        rest = list(lines)
    assert any('"code":"stream_cancelled"' in line for line in rest)
    assert "data: [DONE]" not in rest, "a cancelled stream has no clean end"
    assert probe.wait_for_end(stream_id).state is StreamState.CANCELLED
    assert http.delete(f"/v1/streams/{stream_id}").json()["state"] == "ended"
    assert http.post(f"/v1/streams/{stream_id}/cancel").json()["state"] == "ended"


def test_an_idempotency_key_starts_one_stream(http: httpx.Client, probe: StreamProbe) -> None:
    body = {"model": "quick", "messages": ASK, "max_tokens": 30, "temperature": 1.0}
    headers = {"idempotency-key": "of this test"}
    first = http.post("/v1/chat/completions", json=body, headers=headers)
    again = http.post("/v1/chat/completions", json=body, headers=headers)
    assert again.headers["x-headrace-stream-id"] == first.headers["x-headrace-stream-id"]
    assert again.json()["choices"] == first.json()["choices"]
    assert again.json()["usage"] == first.json()["usage"]
    other = http.post("/v1/chat/completions", json={**body, "max_tokens": 31}, headers=headers)
    assert other.status_code == 422
    assert other.json()["error"]["code"] == "idempotency_key_reused"
    assert probe.wait_for_end(first.headers["x-headrace-stream-id"]).usage.completion_tokens == 30


def test_a_client_with_a_key_comes_back_to_its_running_stream(http: httpx.Client, probe: StreamProbe) -> None:
    body = {"model": "slow", "messages": ASK, "max_tokens": 40, "stream": True, "ignore_eos": True}
    headers = {"idempotency-key": "comes back"}
    with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        stream_id = answer.headers["x-headrace-stream-id"]
        next(line for line in answer.iter_lines() if '"content":' in line)
    with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.headers["x-headrace-stream-id"] == stream_id
        chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == probe.text(stream_id)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_refused_request_does_not_use_its_key_up(http: httpx.Client) -> None:
    headers = {"idempotency-key": "refused first"}
    refused = http.post("/v1/chat/completions", json={"model": "quick", "messages": []}, headers=headers)
    assert refused.status_code == 400
    body = {"model": "quick", "messages": ASK, "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
