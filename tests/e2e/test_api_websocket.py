"""The WebSocket interface `headrace.v1` through a real client."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from headrace_wire.messages import StreamState
from tests.support.live_stack import LiveStack
from tests.support.slow_clients import HEAR_SECONDS
from tests.support.stream_probe import StreamProbe

ASK = [{"role": "user", "content": "Say something."}]


@pytest.fixture
def probe(live_stack: LiveStack) -> StreamProbe:
    return StreamProbe(live_stack.redis_url)


@pytest.fixture
def socket(live_stack: LiveStack) -> Iterator[ClientConnection]:
    with opened(live_stack) as connection:
        yield connection


def opened(stack: LiveStack, key: str | None = None, protocols: tuple[str, ...] = ("headrace.v1",)) -> ClientConnection:
    headers = {"Authorization": f"Bearer {key or stack.api_key}"}
    options: dict[str, Any] = {"subprotocols": list(protocols) or None, "open_timeout": HEAR_SECONDS}
    connection: ClientConnection = connect(stack.ws_url, additional_headers=headers, **options)
    return connection


def say(connection: ClientConnection, kind: str, **fields: Any) -> None:
    connection.send(json.dumps({"type": kind, **fields}))


def hear(connection: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(connection.recv(timeout=HEAR_SECONDS))
    return frame


def hear_until(connection: ClientConnection, *kinds: str) -> list[dict[str, Any]]:
    frames = [hear(connection)]
    while frames[-1]["type"] not in kinds:
        frames.append(hear(connection))
    return frames


def text_of(frames: list[dict[str, Any]]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


def test_a_stream_from_generate_to_end(socket: ClientConnection, probe: StreamProbe) -> None:
    assert socket.subprotocol == "headrace.v1"
    say(socket, "generate", ref="r1", model="quick", messages=ASK, max_tokens=30)
    frames = hear_until(socket, "end")
    kinds = [kind for kind, _ in itertools.groupby(frame["type"] for frame in frames)]
    assert kinds[:2] == ["queued", "started"], "its place may change while it waits"
    stream_id = frames[0]["stream_id"]
    assert frames[0]["position"] >= 1
    deltas = [frame for frame in frames if frame["type"] == "delta"]
    assert [0, *(delta["seq"] for delta in deltas)] == [*(delta["after"] for delta in deltas), deltas[-1]["seq"]]
    assert {frame["ref"] for frame in frames} == {"r1"}
    assert text_of(frames) == probe.text(stream_id)
    end = frames[-1]
    assert end["state"] == "finished"
    assert end["finish_reason"] == "length"
    assert end["usage"]["completion_tokens"] == 30
    assert end["timings"]["ttft_ms"] > 0


def test_cancel_stops_the_engine(socket: ClientConnection, probe: StreamProbe) -> None:
    say(socket, "generate", model="slow", messages=ASK, max_tokens=400, ignore_eos=True)
    stream_id = hear_until(socket, "delta")[0]["stream_id"]
    say(socket, "cancel", stream_id=stream_id)
    end = hear_until(socket, "end")[-1]
    assert (end["state"], end["finish_reason"]) == ("cancelled", "abort")
    assert end["usage"]["completion_tokens"] == probe.wait_for_end(stream_id).usage.completion_tokens < 400
    probe.wait_until_idle("slow")
    say(socket, "cancel", stream_id=stream_id)  # again: nothing happens
    say(socket, "generate", model="quick", messages=ASK, max_tokens=1)
    assert hear(socket)["type"] == "queued"


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ("", None),
        (b"\x00\x01", None),
        ("{", None),
        ('{"type":"dance"}', "type"),
        ('{"type":"generate","messages":[]}', "model"),
        ('{"type":"ack","stream_id":"x","seq":"y"}', "seq"),
        ('{"type":"generate","model":"quick","messages":[],"cache":{"zzz":1}}', "cache"),
    ],
)
def test_a_bad_frame_gets_an_error_and_the_connection_stays(
    socket: ClientConnection, sent: str | bytes, param: str | None
) -> None:
    socket.send(sent)
    frame = hear(socket)
    assert frame["type"] == "error"
    assert set(frame["error"]) == {"message", "type", "param", "code"}
    assert frame["error"]["param"] == param
    say(socket, "generate", model="quick", messages=ASK, max_tokens=1)
    assert hear_until(socket, "end")[-1]["usage"]["completion_tokens"] == 1


def test_refused_generate_names_its_ref(socket: ClientConnection) -> None:
    say(socket, "generate", ref="r9", model="nope", messages=ASK)
    frame = hear(socket)
    assert frame["ref"] == "r9"
    assert frame["error"]["code"] == "model_not_found"
    for window in (0, -1):
        say(socket, "generate", ref="r10", model="quick", messages=ASK, window=window)
        frame = hear(socket)
        assert (frame["type"], frame["ref"], frame["error"]["param"]) == ("error", "r10", "window")


@pytest.mark.parametrize("action", ["resume", "cancel"])
@pytest.mark.parametrize("stream_id", ["strm-" + "0" * 24, "../../etc", "x" * 10_000])
def test_an_unknown_stream_is_not_found(socket: ClientConnection, action: str, stream_id: str) -> None:
    say(socket, action, stream_id=stream_id)
    assert hear(socket)["error"]["code"] == "stream_not_found"


@pytest.mark.parametrize("after", [0, 1, 7, 29, 30])
def test_resume_gives_what_comes_after_the_cursor(live_stack: LiveStack, socket: ClientConnection, after: int) -> None:
    say(socket, "generate", model="quick", messages=ASK, max_tokens=30)
    first = hear_until(socket, "end")
    with opened(live_stack) as second:
        say(second, "resume", stream_id=first[0]["stream_id"], after=after)
        frames = hear_until(second, "end")
    whole = {frame["seq"]: frame["text"] for frame in first if frame["type"] == "delta"}
    if after in whole or after == 0:
        assert text_of(frames) == "".join(text for seq, text in whole.items() if seq > after)
    assert frames[-1]["usage"] == first[-1]["usage"]


def test_resume_in_mid_answer_joins_live(live_stack: LiveStack, socket: ClientConnection) -> None:
    say(socket, "generate", model="slow", messages=ASK, max_tokens=30, ignore_eos=True)
    stream_id = hear_until(socket, "delta")[0]["stream_id"]
    with opened(live_stack) as second:
        say(second, "resume", stream_id=stream_id, after=0)
        joined = hear_until(second, "end")
    first = hear_until(socket, "end")
    assert text_of(joined).endswith(text_of(first))
    assert joined[-1]["usage"] == first[-1]["usage"]


def test_many_streams_share_a_connection(socket: ClientConnection, probe: StreamProbe) -> None:
    for n in range(8):
        say(socket, "generate", ref=str(n), model="quick", messages=ASK, max_tokens=10 + n)
    frames: list[dict[str, Any]] = []
    while sum(frame["type"] == "end" for frame in frames) < 8:
        frames.append(hear(socket))
    for n in range(8):
        stream_id = next(frame["stream_id"] for frame in frames if frame.get("ref") == str(n))
        mine = [frame for frame in frames if frame["stream_id"] == stream_id]
        assert text_of(mine) == probe.text(stream_id)
        assert mine[-1]["usage"]["completion_tokens"] == 10 + n


def test_acknowledgements_are_taken_and_clamped(socket: ClientConnection) -> None:
    say(socket, "generate", model="quick", messages=ASK, max_tokens=20)
    stream_id = hear_until(socket, "delta")[0]["stream_id"]
    say(socket, "ack", stream_id=stream_id, seq=10**12)
    say(socket, "ack", stream_id=stream_id, seq=-5)
    assert hear_until(socket, "end")[-1]["state"] == "finished"


@pytest.mark.parametrize("key", ["nonsense", "sk-hr-aaaaaaaaaaaa-" + "A" * 40])
def test_a_bad_key_is_closed_with_4401(live_stack: LiveStack, key: str) -> None:
    with opened(live_stack, key=key) as connection:
        assert hear(connection)["error"]["code"] == "invalid_api_key"
        with pytest.raises(ConnectionClosedError) as closed:
            connection.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4401


def test_a_forged_ticket_and_a_foreign_page_are_refused(live_stack: LiveStack) -> None:
    for origin, code in ((live_stack.base_url, 4401), ("https://evil.example", 4403)):
        with connect(
            live_stack.ws_url,
            subprotocols=[Subprotocol("headrace.v1"), Subprotocol("headrace.ticket.forged")],
            origin=Origin(origin),
            open_timeout=HEAR_SECONDS,
        ) as connection:
            hear(connection)
            with pytest.raises(ConnectionClosedError) as closed:
                connection.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == code


def test_a_client_that_leaves_keeps_its_answer_in_the_log(live_stack: LiveStack, probe: StreamProbe) -> None:
    with opened(live_stack) as connection:
        say(connection, "generate", model="slow", messages=ASK, max_tokens=30, ignore_eos=True)
        stream_id = hear_until(connection, "delta")[0]["stream_id"]
    ended = probe.wait_for_end(stream_id)
    assert ended.state is StreamState.FINISHED, "the tenant's detached policy is `finish`"
    assert ended.usage.completion_tokens == 30
