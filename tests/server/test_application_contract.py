"""What the server does with applications that fail, stay silent, do not end or cannot start."""

import json
import socket
import sys
import time

import pytest

from tests.conftest import Spawn
from tests.server.conftest import APPLICATION, SMALL_RECEIVE_BUFFER, Gateway, Serve


@pytest.mark.parametrize("path", ["/v1/silent", "/admin/silent"])
async def test_an_application_that_does_not_answer_gets_500(gateway: Gateway, path: str) -> None:
    async with gateway.connect() as client:
        await client.get(path)
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (500, "close")
        if path.startswith("/v1"):
            assert json.loads(body)["error"]["code"] == "internal_error"


@pytest.mark.parametrize(("query", "server"), [("", b"headrace"), ("?server=1", b"mine")])
async def test_a_head_is_written_as_the_application_gave_it(gateway: Gateway, query: str, server: bytes) -> None:
    async with gateway.connect() as client:
        for _ in range(2):
            await client.get(f"/heads{query}")
            assert await client.reader.readuntil(b"\r\n\r\nok") == (
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Twice: 1\r\nX-Twice: 2\r\nX-Lines: a b c\r\n"
                b'ETag: "e"\r\nX-Empty: \r\nServer: ' + server + b"\r\n\r\nok"
            )


async def test_an_application_that_breaks_the_protocol_gets_500(spawn: Spawn) -> None:
    process = spawn([sys.executable, "-m", "headrace.server", "--port=0", f"--application={APPLICATION}"])
    gateway = Gateway(process, int(process.wait_for_line(r"Listening on \S+ port (\d+)")[1]))
    for how in ("body-first", "two-starts", "no-name", "no-bytes"):
        async with gateway.connect() as client:
            await client.get(f"/v1/wrong?how={how}")
            assert (await client.answer())[0] == 500, how


async def test_a_response_that_was_not_completed_cannot_be_taken_for_a_whole_one(gateway: Gateway) -> None:
    async with gateway.connect() as client:
        await client.get("/silent?late=1")
        assert not (await client.rest()).endswith(b"0\r\n\r\n")


async def test_an_application_that_fails_is_logged_and_answered(spawn: Spawn) -> None:
    process = spawn([sys.executable, "-m", "headrace.server", "--port=0", f"--application={APPLICATION}"])
    gateway = Gateway(process, int(process.wait_for_line(r"Listening on \S+ port (\d+)")[1]))
    async with gateway.connect() as client:
        await client.get("/v1/crash")
        assert (await client.answer())[0] == 500
    async with gateway.connect() as client:
        await client.get("/v1/crash?late=1")
        assert b"begun" in await client.rest()
    process.wait_for_line("LookupError: The test application fails on purpose.", times=2)
    assert await gateway.get("/hello")


async def test_an_application_that_ignores_its_clients_end_is_cancelled(serve: Serve, name: str) -> None:
    gateway = await serve(application_close_seconds=0.3)
    async with gateway.connect() as client:
        await client.get(f"/stubborn?name={name}")
        await client.head()
    await gateway.journal(name, "cancelled")
    await gateway.until(lambda counts: (counts["http_requests"], counts["connections"]) == (1, 1))


async def test_django_closes_the_body_of_a_client_that_left_while_send_waits(serve: Serve) -> None:
    gateway = await serve("tests.server.django_application:application")
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get("/stream")
        await gateway.get("/journal?event=paused")
        left_at = time.monotonic()
    notes = await gateway.get("/journal?event=closed")
    assert notes["events"]["closed"] - left_at < 20


async def test_the_application_can_cut_its_connection(gateway: Gateway, name: str) -> None:
    async with gateway.connect() as client:
        await client.get(f"/abort?name={name}")
        await gateway.journal(name, "http.disconnect")
        await client.rest()


async def test_counts_follow_the_connections(gateway: Gateway, name: str) -> None:
    async with gateway.connect(), gateway.connect() as client:
        await client.get(f"/hold?name={name}")
        await gateway.journal(name, "begun")
        await gateway.until(
            lambda counts: (counts["connections"], counts["http_requests"], counts["websockets"]) == (3, 2, 0)
        )
        await gateway.get(f"/release?of={name}")
        await client.answer()
    await gateway.until(lambda counts: (counts["connections"], counts["http_requests"]) == (1, 1))


async def test_a_startup_that_fails_ends_the_process_with_its_reason(spawn: Spawn) -> None:
    process = spawn([
        sys.executable, "-m", "headrace.server", "--port=0",
        "--application=tests.server.lifespan_applications:with_failing_startup",
    ])  # fmt: skip
    assert process.wait() == 1
    assert "The gateway cannot start: no lifespan today" in process.log
    assert "Traceback" not in process.log


async def test_a_taken_port_ends_the_process_with_its_reason(spawn: Spawn) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = spawn([sys.executable, "-m", "headrace.server", f"--port={port}", f"--application={APPLICATION}"])
        assert process.wait() == 1
    assert f"Couldn't listen on 127.0.0.1:{port}" in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize("flag", ["--no-such-flag=1", "--port=many", "--drain-deadline-seconds=-1"])
async def test_a_wrong_flag_ends_the_process_with_its_name(spawn: Spawn, flag: str) -> None:
    process = spawn([sys.executable, "-m", "headrace.server", f"--application={APPLICATION}", flag])
    assert process.wait() == 2
    assert flag.partition("=")[0] in process.log
    assert "Traceback" not in process.log


async def test_it_listens_on_ipv6(spawn: Spawn) -> None:
    process = spawn(
        [sys.executable, "-m", "headrace.server", "--host=::1", "--port=0", f"--application={APPLICATION}"],
    )
    port = int(process.wait_for_line(r"Listening on ::1 port (\d+)")[1])
    with socket.create_connection(("::1", port)) as client:
        client.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 200") or client.recv(100)
