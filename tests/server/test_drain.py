"""SIGTERM: readiness flips, connections are taken no more, what runs gets its time, the rest is cut with one line."""

import asyncio
import json
import re
import signal
import time

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.server.conftest import SMALL_RECEIVE_BUFFER, UPGRADE, Gateway, Serve

RESTART = re.compile(r"service restart; retry_after_ms=(\d+)")


async def _ended(gateway: Gateway) -> int:
    return await asyncio.to_thread(gateway.process.wait)


def _drain(gateway: Gateway) -> None:
    gateway.process.send_signal(signal.SIGTERM)


async def test_a_server_without_clients_ends_at_once(serve: Serve) -> None:
    gateway = await serve()
    _drain(gateway)
    assert await _ended(gateway) == 0


async def test_an_idle_connection_does_not_hold_up_the_end(serve: Serve) -> None:
    gateway = await serve()
    async with gateway.connect() as idle, gateway.connect() as silent:
        await idle.get("/hello")
        await idle.answer()
        _drain(gateway)
        assert await idle.rest() == b""
        assert await silent.rest() == b""
        assert await _ended(gateway) == 0


async def test_readiness_flips_before_connections_are_refused(serve: Serve) -> None:
    gateway = await serve(drain_notice_seconds=600)
    async with gateway.connect() as client:
        _drain(gateway)
        await gateway.until(lambda counts: counts["draining"])
        await client.get("/counts")
        _, headers, body = await client.answer()
        assert json.loads(body)["draining"]
        assert headers["connection"] == "close"
        assert await client.rest() == b""
    with pytest.raises(InvalidStatus) as raised:
        async with connect(f"{gateway.ws_url}/echo"):
            pass
    assert raised.value.response.status_code == 503
    _drain(gateway)  # a second signal ends the notice
    assert await _ended(gateway) == 0
    with pytest.raises(ConnectionRefusedError):
        await gateway.get("/hello")


async def test_websockets_get_1012_with_a_delay_of_their_own(serve: Serve) -> None:
    gateway = await serve(drain_jitter_seconds=5)
    clients = [await connect(f"{gateway.ws_url}/echo") for _ in range(20)]
    for client in clients:
        await client.send("x")
        await client.recv()
    _drain(gateway)
    delays = set()
    for client in clients:
        await client.wait_closed()
        assert client.close_code == 1012
        match = RESTART.fullmatch(client.close_reason or "")
        assert match is not None
        delays.add(int(match[1]))
    assert max(delays) <= 5000
    assert len(delays) > 10
    assert await _ended(gateway) == 0


async def test_a_held_websocket_ends_its_stream_before_it_gets_1012(serve: Serve, name: str) -> None:
    gateway = await serve()
    async with gateway.connect() as control, connect(f"{gateway.ws_url}/hold?name={name}") as client:
        assert await client.recv() == b"data: begun\n\n"
        await control.send(f"GET /release?of={name} HTTP/1.1\r\nHost: test".encode())
        _drain(gateway)
        await asyncio.to_thread(gateway.process.wait_for_line, "Draining")
        await control.send(b"\r\n\r\n")
        assert (await control.head())[0] == 200
        assert await client.recv() == b"data: released\n\n"
        await client.wait_closed()
        assert client.close_code == 1012
    assert await _ended(gateway) == 0
    assert "cut" not in gateway.process.log


async def test_a_running_response_is_completed(serve: Serve, name: str) -> None:
    gateway = await serve()
    async with gateway.connect() as control, gateway.connect() as client:
        await client.get(f"/hold?name={name}")
        await gateway.journal(name, "begun")
        await control.send(f"GET /release?of={name} HTTP/1.1\r\nHost: test".encode())
        _drain(gateway)
        await asyncio.to_thread(gateway.process.wait_for_line, "Draining")
        await control.send(b"\r\n\r\n")
        _, _, body = await client.answer()
        assert body == b"data: begun\n\ndata: released\n\n"
        assert await client.rest() == b""
    assert await _ended(gateway) == 0
    assert "cut" not in gateway.process.log


@pytest.mark.parametrize("headers", [(), UPGRADE], ids=["http", "websocket"])
async def test_the_application_is_told_before_the_deadline_and_says_so(
    serve: Serve, name: str, headers: tuple[str, ...]
) -> None:
    gateway = await serve(drain_deadline_seconds=60, drain_cut_notice_seconds=59.5)
    async with gateway.connect() as client:
        await client.get(f"/hold?name={name}", *headers)
        await gateway.journal(name, "begun")
        _drain(gateway)
        if headers:
            await client.reader.readuntil(b"data: closing\n\n")
        else:
            _, _, body = await client.answer()
            assert body.endswith(b"data: closing\n\n")


async def test_what_is_left_at_the_deadline_is_cut_with_one_line(serve: Serve, name: str) -> None:
    gateway = await serve(drain_deadline_seconds=0.5, drain_cut_notice_seconds=0.1)
    async with gateway.connect() as http, connect(f"{gateway.ws_url}/hold?name={name}&ignore=1") as websocket:
        await http.get(f"/hold?name={name}-http&ignore=1")
        await gateway.journal(f"{name}-http", "begun")
        await gateway.journal(name, "begun")
        _drain(gateway)
        assert not (await http.rest()).endswith(b"0\r\n\r\n")
        await websocket.wait_closed()
        assert websocket.close_code == 1012
    assert await _ended(gateway) == 0
    lines = [line for line in gateway.process.log.splitlines() if "cut" in line]
    assert len(lines) == 1
    assert "1 HTTP and 1 WebSocket connections; 2 application calls" in lines[0]


async def test_a_client_that_reads_nothing_cannot_hold_up_the_end(serve: Serve, name: str) -> None:
    gateway = await serve(drain_deadline_seconds=0.5)
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/blocks?name={name}&count=100000")
        await gateway.journal(name, "paused")
        started_at = time.monotonic()
        _drain(gateway)
        assert await _ended(gateway) == 0
        assert time.monotonic() - started_at < 60


async def test_a_second_signal_ends_the_drain(serve: Serve, name: str) -> None:
    gateway = await serve(drain_deadline_seconds=600)
    async with gateway.connect() as client:
        await client.get(f"/hold?name={name}&ignore=1")
        await gateway.journal(name, "begun")
        _drain(gateway)
        await asyncio.to_thread(gateway.process.wait_for_line, "Draining")
        gateway.process.send_signal(signal.SIGINT)
        assert await _ended(gateway) == 0


async def test_lifespan_surrounds_the_connections(serve: Serve) -> None:
    gateway = await serve("tests.server.lifespan_applications:with_lifespan")
    assert await gateway.get("/") == {"started": True}
    _drain(gateway)
    assert await _ended(gateway) == 0
    assert gateway.process.log.index("Drained") < gateway.process.log.index("The application shuts down.")
