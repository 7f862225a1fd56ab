"""Bodies over the cap, heads that do not end, connections that come all at once: refused, and nobody else notices."""

import asyncio
import json
import random
import signal
import socket
import time
from contextlib import suppress

import openai
import pytest

from tests.server.conftest import UPGRADE, Client, Gateway, Serve

MIB = 2**20
CAP = 1 * MIB


@pytest.fixture
async def capped(serve: Serve) -> Gateway:
    return await serve(max_body_bytes=CAP)


def _error(body: bytes) -> dict[str, str]:
    error: dict[str, str] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def _upload(client: Client, size: int, *, chunked: bool, path: str = "/v1/body_length") -> None:
    """Sends a POST as a client does that looks at the answer only after its upload; a refused one may break off."""
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    await client.send(f"POST {path} HTTP/1.1\r\nHost: test\r\n{length}\r\n\r\n".encode())
    part = b"x" * 65536
    try:
        for start in range(0, size, len(part)):
            data = part[: size - start]
            await client.send(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
        if chunked:
            await client.send(b"0\r\n\r\n")
    except ConnectionError:
        pass


@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
async def test_a_body_over_the_cap_is_answered_with_413_and_costs_no_memory(capped: Gateway, chunked: bool) -> None:
    await capped.get("/hello")
    before = capped.rss_bytes
    async with capped.connect() as client:
        await _upload(client, 100 * MIB, chunked=chunked)
        status, headers, body = await client.answer()
        assert capped.rss_bytes - before < 4 * MIB
        assert (status, headers["connection"], headers["content-type"]) == (413, "close", "application/json")
        assert _error(body)["code"] == "payload_too_large"
        assert await client.rest() == b""


@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
async def test_a_body_at_the_cap_reaches_the_application(capped: Gateway, chunked: bool) -> None:
    async with capped.connect() as client:
        await _upload(client, CAP, chunked=chunked)
        status, _, body = await client.answer()
        assert (status, json.loads(body)) == (200, {"length": CAP})


async def test_a_413_outside_the_api_is_plain_text(capped: Gateway) -> None:
    async with capped.connect() as client:
        await _upload(client, CAP + 1, chunked=False, path="/admin/body_length")
        status, headers, body = await client.answer()
        assert (status, headers["content-type"]) == (413, "text/plain; charset=utf-8")
        assert b"1048576 bytes" in body


async def test_a_client_that_asks_first_is_refused_before_it_sends_the_body(capped: Gateway) -> None:
    async with capped.connect() as client:
        head = "POST /v1/body_length HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n"
        await client.send(head.format(CAP + 1).encode())
        status, headers = await client.head()
        assert status == 413
        await client.body(headers)
        assert await client.rest() == b""
    async with capped.connect() as client:
        await client.send(head.format(2).encode())
        assert (await client.head())[0] == 100
        await client.send(b"xx")
        assert (await client.head())[0] == 200


async def test_the_openai_client_raises_its_status_error_for_413(capped: Gateway) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{capped.port}/v1", api_key="none", max_retries=0
    ) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * (2 * CAP)}])
    assert raised.value.status_code == 413
    assert raised.value.code == "payload_too_large"


async def test_a_head_that_trickles_is_closed_at_its_deadline_while_others_are_served(serve: Serve) -> None:
    gateway = await serve(header_timeout_seconds=0.6)
    async with gateway.connect() as client:
        started_at = time.monotonic()
        await client.send(b"GET /v1/models HTTP/1.1\r\n")
        trickling = asyncio.create_task(_trickle(client))
        status, _, body = await client.answer()
        assert 0.5 < time.monotonic() - started_at < 60
        assert (status, _error(body)["code"]) == (408, "request_timeout")
        trickling.cancel()


async def _trickle(client: Client) -> None:
    for number in range(10_000):
        await client.send(b"X-%d: y\r\n" % number)
        await asyncio.sleep(0.1)


async def test_a_body_that_trickles_is_closed_at_its_deadline(serve: Serve) -> None:
    gateway = await serve(body_timeout_seconds=0.6)
    async with gateway.connect() as client:
        await client.send(b"POST /v1/body_length HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n")
        await client.send(b"x")
        status, _, body = await client.answer()
        assert (status, _error(body)["code"]) == (408, "request_timeout")


async def test_a_connection_that_says_nothing_is_closed(serve: Serve) -> None:
    gateway = await serve(header_timeout_seconds=0.3)
    async with asyncio.timeout(60), gateway.connect() as client:
        assert await client.rest() == b""


async def test_an_idle_connection_is_closed_after_its_keep_alive_time(serve: Serve) -> None:
    gateway = await serve(keep_alive_seconds=0.3)
    async with asyncio.timeout(60), gateway.connect() as client:
        await client.get("/hello")
        await client.answer()
        assert await client.rest() == b""


async def test_two_thousand_slow_heads_leave_the_others_served(serve: Serve) -> None:
    """A slow-loris with 2,000 connections."""
    gateway = await serve(header_timeout_seconds=6)
    loop = asyncio.get_running_loop()

    async def begin(sock: socket.socket) -> None:
        await loop.sock_connect(sock, ("127.0.0.1", gateway.port))
        await loop.sock_sendall(sock, b"GET /v1/models HTTP/1.1\r\nX-Slow")

    sockets = [socket.socket() for _ in range(2000)]
    try:
        for sock in sockets:
            sock.setblocking(False)
        await asyncio.gather(*map(begin, sockets))
        assert (await gateway.get("/hello"))["hello"] == "/hello"
        await gateway.until(lambda counts: counts["connections"] == 1 and counts["refused_total"] == 2000)
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(2000)) + b"\r\n",
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 129 + b"\r\n",
    ],
    ids=["one long line", "many headers", "long path", "one header too many"],
)
async def test_a_head_that_is_too_large_is_answered_with_431(gateway: Gateway, head: bytes) -> None:
    async with gateway.connect() as client:
        await client.send(head)
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (431, "close")


async def test_more_connections_than_allowed_are_answered_with_503(serve: Serve) -> None:
    gateway = await serve(max_connections=3)
    async with gateway.connect() as first, gateway.connect() as second, gateway.connect():
        await first.get("/hello")
        assert (await first.answer())[0] == 200
        async with gateway.connect() as refused:
            await refused.get("/v1/models")
            status, headers, body = await refused.answer()
            assert (status, headers["retry-after"], _error(body)["code"]) == (503, "5", "server_overloaded")
            assert await refused.rest() == b""
        await second.get("/hello")
        assert (await second.answer())[0] == 200


async def test_a_burst_of_connections_fits_into_the_backlog(gateway: Gateway) -> None:
    """With Twisted's backlog of 50 most of them would wait a second for the client's next SYN."""
    gateway.process.send_signal(signal.SIGSTOP)  # what connects now must fit into the backlog
    sockets = [socket.socket() for _ in range(1000)]
    try:
        for sock in sockets:
            sock.settimeout(0.5)
            await asyncio.to_thread(sock.connect, ("127.0.0.1", gateway.port))
    finally:
        gateway.process.send_signal(signal.SIGCONT)
        for sock in sockets:
            sock.close()
    await gateway.get("/hello")


BAD_REQUESTS = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no version": b"GET /\r\n\r\n",
    "old version": b"GET / HTTP/0.9\r\n\r\n",
    "bad method": b"G@T / HTTP/1.1\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\n\r\n",
    "bad path": b"GET /\x80\x90 HTTP/1.1\r\nHost: test\r\n\r\n",
    "bad query": b"GET /hello?\x80 HTTP/1.1\r\nHost: test\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost test\r\n\r\n",
    "bad name": b"GET / HTTP/1.1\r\nHo st: test\r\n\r\n",
    "bad value": b"GET / HTTP/1.1\r\nX: a\x0bb\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n",
    "bad length": b"POST / HTTP/1.1\r\nContent-Length: ten\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "length and chunks": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "bad coding": b"POST / HTTP/1.1\r\nTransfer-Encoding: zip\r\n\r\n",
    "bad chunk": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    "bad chunk end": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n",
    "root path from the client": b"GET / HTTP/1.1\r\nHost: test\r\nX-Forwarded-For: \xff\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
async def test_a_bad_request_is_answered_with_400(gateway: Gateway, request_bytes: bytes) -> None:
    async with gateway.connect() as client:
        await client.send(request_bytes if request_bytes.endswith(b"\r\n") else request_bytes + b"\r\n\r\n")
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert await client.rest() == b""


async def test_a_client_cannot_choose_the_root_path(gateway: Gateway) -> None:
    async with gateway.connect() as client:
        await client.get("/hello", "Daphne-Root-Path: /elsewhere\xff")
        _, _, body = await client.answer()
        assert json.loads(body)["root_path"] == ""


async def test_noise_brings_nothing_down_and_leaves_no_traceback(serve: Serve) -> None:
    """Requests and frames with random bytes changed, removed and doubled; the fixture looks at the log."""
    gateway = await serve(header_timeout_seconds=0.2, body_timeout_seconds=0.2, handshake_timeout_seconds=0.2)
    noise = random.Random(20261129)
    upgrade = "\r\n".join(["GET /echo HTTP/1.1", "Host: test", *UPGRADE, "", ""]).encode()
    seeds = [
        b"POST /v1/body_length HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /v1/body_length HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"GET /hello?a=%20&b=1 HTTP/1.1\r\nHost: test\r\nCookie: a=b; c=d\r\nRange: bytes=0-1\r\n\r\n",
        upgrade,
        upgrade.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Protocol: a, b\r\nOrigin: http://x\r\n\r\n"),
    ]
    frames = [
        b"\x81\x85\1\2\3\4iikhn",
        b"\x82\xfe\x00\x80\0\0\0\0" + b"x" * 128,
        b"\x89\x80\0\0\0\0",
        b"\x88\x82\0\0\0\0\3\xe8",
    ]
    for _ in range(300):
        seed = noise.choice(seeds)
        mutated = bytearray(seed)
        for _ in range(noise.randrange(4)):
            at = noise.randrange(len(mutated))
            mutated[at : at + noise.randrange(3)] = noise.randbytes(noise.randrange(3))
        async with gateway.connect() as client:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                await client.send(bytes(mutated))
                if seed.startswith(b"GET /echo"):
                    await client.head()
                    for _ in range(3):
                        frame = bytearray(noise.choice(frames))
                        frame[noise.randrange(len(frame))] = noise.randrange(256)
                        await client.send(bytes(frame))
                async with asyncio.timeout(0.5):
                    await client.reader.read(65536)
    assert (await gateway.get("/hello"))["hello"] == "/hello"
