"""WebSockets: close codes and reasons, oversized and broken frames, pings, handshakes."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.server.conftest import SMALL_RECEIVE_BUFFER, UPGRADE, Gateway, Serve

MIB = 2**20


async def _closed(client: ClientConnection) -> tuple[int | None, str | None]:
    async for _ in _messages(client):
        pass
    return client.close_code, client.close_reason


async def _messages(client: ClientConnection) -> AsyncIterator[str | bytes]:
    """What still comes, up to the close, whatever its code."""
    with suppress(ConnectionClosed):
        while True:
            yield await client.recv()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (1000, ""),
        (1001, "leaving"),
        (1009, "too big"),
        (1011, "failed"),
        (1012, "service restart; retry_after_ms=17"),
        (1013, "try again later"),
        (4401, "the key was revoked"),
        (4403, "no"),
        (4404, "no such model"),
        (4429, "over the limit"),
    ],
)
async def test_close_codes_and_reasons_arrive(gateway: Gateway, name: str, code: int, reason: str) -> None:
    async with connect(f"{gateway.ws_url}/close?name={name}&code={code}&reason={reason.replace(' ', '%20')}") as client:
        assert await _closed(client) == (code, reason)
    await gateway.journal(name, f"disconnect {code} {reason}")


async def test_a_long_reason_is_cut_between_characters(gateway: Gateway) -> None:
    async with connect(f"{gateway.ws_url}/close?code=4000&reason=a{'%C3%A9' * 100}") as client:
        assert await _closed(client) == (4000, "a" + "é" * 61)


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 2000, 5000])
async def test_a_code_that_may_not_be_sent_is_the_applications_error(gateway: Gateway, name: str, code: int) -> None:
    async with connect(f"{gateway.ws_url}/close?name={name}&code={code}") as client:
        assert await _closed(client) == (4000, "refused")
    await gateway.journal(name, "refused")


@pytest.mark.parametrize("message", ["", "x", "é" * 60, "x" * 125, "x" * 126, "x" * 65535, "x" * 65536, "x" * MIB])
async def test_text_of_every_frame_size_comes_back(gateway: Gateway, message: str) -> None:
    async with connect(f"{gateway.ws_url}/echo", max_size=None, compression=None) as client:
        for sent in (message, message.encode()):
            await client.send(sent)
            assert await client.recv() == sent


async def test_fragmented_messages_and_pings_between_them(gateway: Gateway) -> None:
    async with connect(f"{gateway.ws_url}/echo", compression=None) as client:
        pong = await client.ping()
        await client.send(["frag", "men", "ted"])
        assert await client.recv() == "fragmented"
        await pong


async def test_a_message_over_the_limit_gets_1009(gateway: Gateway, name: str) -> None:
    before = gateway.rss_bytes
    async with connect(f"{gateway.ws_url}/echo?name={name}", compression=None) as client:
        with suppress(ConnectionClosed):
            await client.send("x" * (64 * MIB))
        assert (await _closed(client))[0] == 1009
    assert gateway.rss_bytes - before < 4 * MIB


async def test_many_frames_of_one_message_over_the_limit_get_1009(gateway: Gateway) -> None:
    async with connect(f"{gateway.ws_url}/echo", compression=None) as client:
        with suppress(ConnectionClosed):
            await client.send(["x" * 65536] * 100)
        assert (await _closed(client))[0] == 1009


BROKEN_FRAMES = {
    "not masked": (b"\x81\x02hi", 1002),
    "reserved bit": (b"\xc1\x82\0\0\0\0hi", 1002),
    "unknown opcode": (b"\x83\x82\0\0\0\0hi", 1002),
    "long ping": (b"\x89\xfe\x00\x7e\0\0\0\0" + b"x" * 126, 1002),
    "continuation of nothing": (b"\x80\x82\0\0\0\0hi", 1002),
    "text that is no UTF-8": (b"\x81\x82\0\0\0\0\xff\xff", 1007),
    "close without a code": (b"\x88\x81\0\0\0\0x", 1002),
    "close with a code that may not be sent": (b"\x88\x82\0\0\0\0\x03\xee", 1002),
}


@pytest.mark.parametrize(("frame", "code"), BROKEN_FRAMES.values(), ids=BROKEN_FRAMES.keys())
async def test_a_broken_frame_gets_a_close_code(gateway: Gateway, frame: bytes, code: int) -> None:
    async with gateway.connect() as client:
        await client.get("/echo", *UPGRADE)
        assert (await client.head())[0] == 101
        await client.send(frame)
        header = await client.reader.readexactly(4)
        assert (header[0], int.from_bytes(header[2:])) == (0x88, code)


async def test_a_client_that_broke_the_protocol_and_stays_is_let_go(gateway: Gateway) -> None:
    async with gateway.connect() as client:
        await client.get("/echo", *UPGRADE)
        await client.head()
        await client.send(b"\x83\x82\0\0\0\0hi")
        async with asyncio.timeout(60):
            await client.rest()


async def test_a_client_that_leaves_without_a_word_is_noticed(gateway: Gateway, name: str) -> None:
    async with gateway.connect() as client:
        await client.get(f"/echo?name={name}", *UPGRADE)
        await client.head()
    await gateway.until(lambda counts: counts["websockets"] == 0)
    async with asyncio.timeout(60):  # the application hears of it a moment later
        while not any(event.startswith("disconnect 1006") for event in (await gateway.journal(name))["events"]):
            pass


async def test_a_good_bye_is_heard_before_the_client_has_taken_what_waits(gateway: Gateway, name: str) -> None:
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/blocks?name={name}&watch=1&count=200", *UPGRADE)
        await gateway.journal(name, "paused")
        await client.send(b"\x88\x82\0\0\0\0\x03\xe8")
        events = (await gateway.journal(name, "disconnect 1000 "))["events"]
        assert "sent" not in events
        assert (await client.rest()).endswith(b"\x88\x02\x03\xe8")
        assert [event for event in events if event.startswith("disconnect")] == ["disconnect 1000 "]


async def test_accept_carries_subprotocol_and_headers(gateway: Gateway) -> None:
    protocols = [Subprotocol("headrace.v1"), Subprotocol("other")]
    async with connect(f"{gateway.ws_url}/accept?protocol=headrace.v1", subprotocols=protocols) as client:
        assert client.subprotocol == "headrace.v1"
        assert client.response is not None
        assert client.response.headers["x-headrace"] == "yes"


async def test_a_handshake_that_the_application_refuses_gets_403(gateway: Gateway) -> None:
    with pytest.raises(InvalidStatus) as raised:
        async with connect(f"{gateway.ws_url}/reject"):
            pass
    assert raised.value.response.status_code == 403


async def test_a_handshake_that_the_application_leaves_open_gets_503(serve: Serve, name: str) -> None:
    gateway = await serve(handshake_timeout_seconds=0.3)
    with pytest.raises(InvalidStatus) as raised:
        async with connect(f"{gateway.ws_url}/undecided?name={name}"):
            pass
    assert raised.value.response.status_code == 503
    await gateway.journal(name, "websocket.disconnect")


@pytest.mark.parametrize(
    "headers",
    [
        ["Upgrade: websocket"],
        [*UPGRADE[:3]],
        [*UPGRADE[:2], "Sec-WebSocket-Version: 12", UPGRADE[3]],
        [*UPGRADE[:3], "Sec-WebSocket-Key: short"],
        [*UPGRADE, "Origin: ::::"],
        [*UPGRADE, "Sec-WebSocket-Protocol: a, a"],
        [*UPGRADE, "Sec-WebSocket-Protocol: \xe9"],
        [*UPGRADE, "Sec-WebSocket-Extensions: ;;;=,"],
    ],
)
async def test_a_broken_handshake_is_refused(gateway: Gateway, headers: list[str]) -> None:
    async with gateway.connect() as client:
        await client.get("/echo", *headers)
        assert (await client.head())[0] in {101, 400, 426}


async def test_a_client_that_does_not_answer_pings_is_cut(serve: Serve, name: str) -> None:
    gateway = await serve(ping_interval_seconds=0.2, ping_timeout_seconds=0.4)
    async with gateway.connect() as client:
        await client.get(f"/echo?name={name}", *UPGRADE)
        await client.head()
        assert (await client.reader.readexactly(2)) == b"\x89\x00"
        async with asyncio.timeout(60):
            assert await client.rest() == b""
    assert "disconnect 1006 ping timeout" in (await gateway.journal(name, "disconnect 1006 ping timeout"))["events"]
    assert (await gateway.get("/counts"))["ping_timeout_total"] == 1


async def test_a_client_that_answers_pings_stays(serve: Serve) -> None:
    gateway = await serve(ping_interval_seconds=0.2, ping_timeout_seconds=4)
    async with connect(f"{gateway.ws_url}/echo", ping_interval=None) as client:
        opened_at = time.monotonic()
        while time.monotonic() < opened_at + 5:
            await gateway.get("/hello")
        await client.send("still here")
        assert await client.recv() == "still here"


async def test_an_unanswered_ping_behind_unread_data_means_slow(serve: Serve, name: str) -> None:
    gateway = await serve(ping_interval_seconds=0.1, ping_timeout_seconds=0.2)
    count = 200
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/blocks?name={name}&count={count}", *UPGRADE)
        paused_at = (await gateway.journal(name, "paused"))["events"]["paused"]
        while time.monotonic() < paused_at + 1.5:
            await gateway.get("/hello")
        received = await client.read_to(b"\x88\x02\x03\xe8")
        assert received.count(b"%08d" % (count - 1)) == 4096 // 8
        assert (await gateway.get("/counts"))["ping_timeout_total"] == 0


TWO_MESSAGES = """
import sys
from websockets.sync.client import connect
with connect(sys.argv[1], compression=None) as client:
    for _ in range(2):
        print(client.recv().decode().strip(), flush=True)
"""


async def test_a_stopped_client_survives_its_ping_periods_and_loses_nothing(serve: Serve, name: str) -> None:
    gateway = await serve(ping_interval_seconds=0.3, ping_timeout_seconds=30)
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TWO_MESSAGES, f"{gateway.ws_url}/hold?name={name}", stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"data: begun\n"
    client.send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    while time.monotonic() < stopped_at + 1.2:
        await gateway.get("/hello")
    await gateway.get(f"/release?of={name}")
    client.send_signal(signal.SIGCONT)
    assert await client.stdout.read() == b"data: released\n"
    assert await client.wait() == 0
    assert (await gateway.get("/counts"))["ping_timeout_total"] == 0


async def test_an_application_that_ends_without_a_close_gets_1011(gateway: Gateway) -> None:
    async with connect(f"{gateway.ws_url}/silent?late=1") as client:
        assert await _closed(client) == (1011, "the application ended")
