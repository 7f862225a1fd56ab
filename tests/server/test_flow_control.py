"""A client's pace is the application's pace: on slow, stopped and vanished readers, over HTTP and WebSocket."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import websockets
from websockets.asyncio.client import connect

from tests.server.applications import BLOCK, block
from tests.server.conftest import SMALL_RECEIVE_BUFFER, TRANSPORTS, UPGRADE, Gateway, Serve

MIB = 2**20
STREAM_BLOCKS = 64 * MIB // BLOCK
ATTEMPTS = 20
"""Of what has to be quick: on a busy machine, most may be late."""
BOUND = 512 * 1024
"""What may be under way to a client that reads nothing: user space, the kernel's send queue, the client's buffers."""


@asynccontextmanager
async def gave_up_after(seconds: float) -> AsyncIterator[None]:
    """Expects that its block cannot get to its end."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_client_that_reads_nothing_pauses_the_application_and_costs_no_memory(
    gateway: Gateway, name: str, kind: str
) -> None:
    await gateway.get("/hello")
    before = gateway.rss_bytes
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/blocks?name={name}&count={STREAM_BLOCKS}", *TRANSPORTS[kind])
        notes = await gateway.journal(name, "paused")
        assert notes["sent_bytes"] < BOUND
        assert (await gateway.journal(name))["sent_bytes"] == notes["sent_bytes"]
        assert 0 < (await gateway.get("/counts"))["buffered_bytes"] < 64 * 1024
        assert gateway.rss_bytes - before < 2 * MIB


async def test_what_waits_is_counted_by_the_sweep_over_all_connections(gateway: Gateway, name: str) -> None:
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/blocks?name={name}&count={STREAM_BLOCKS}")
        await gateway.journal(name, "paused")
        await gateway.until(lambda counts: counts["buffered_lately"] == counts["buffered_bytes"] > 0)
    await gateway.until(lambda counts: counts["buffered_lately"] == 0)


async def test_fifty_stalled_clients_cost_no_more_than_their_buffers(gateway: Gateway, name: str) -> None:
    await gateway.get("/hello")
    before = gateway.rss_bytes
    async with AsyncExitStack() as stack:
        for number in range(50):
            client = await stack.enter_async_context(gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER))
            await client.get(f"/blocks?name={name}-{number}&count={STREAM_BLOCKS}")
        for number in range(50):
            await gateway.journal(f"{name}-{number}", "paused")
        assert gateway.rss_bytes - before < 5 * MIB


async def test_a_slow_reader_gets_every_byte_once_it_reads_on(gateway: Gateway, name: str) -> None:
    count = 4 * MIB // BLOCK
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/blocks?name={name}&count={count}")
        await gateway.journal(name, "paused")
        _, _, body = await client.answer()
        assert body == b"".join(map(block, range(count)))


async def test_a_slow_reader_gets_every_byte_in_order_of_what_is_sent_without_waiting(
    gateway: Gateway, name: str
) -> None:
    count = 4 * MIB // BLOCK
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/live?name={name}&count={count}")
        notes = await gateway.journal(name, "paused")
        assert "refused" in notes["events"]
        assert BLOCK < notes["sent_bytes"] < BOUND
        assert 0 < (await gateway.get("/counts"))["buffered_bytes"] < 64 * 1024
        _, _, body = await client.answer()
        assert body == b"".join(map(block, range(count)))
        await gateway.journal(name, "sent")


async def test_a_slow_websocket_reader_gets_every_text_that_is_sent_without_waiting(
    gateway: Gateway, name: str
) -> None:
    count = 4 * MIB // BLOCK
    async with connect(f"{gateway.ws_url}/live?name={name}&count={count}", max_queue=1, compression=None) as client:
        await gateway.journal(name, "paused")
        first, *received = [message async for message in client]
        assert first == block(0)
        assert received[0] == block(1).decode()
        assert [bytes(text, "ascii") if isinstance(text, str) else text for text in received] == [
            block(number) for number in range(1, count)
        ]
    assert client.close_code == 1000


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_nothing_is_sent_without_waiting_to_a_client_that_left(gateway: Gateway, name: str, kind: str) -> None:
    async with gateway.connect() as client:
        await client.get(f"/left?name={name}", *TRANSPORTS[kind])
        await gateway.journal(name, "begun")
    await gateway.journal(name, "sent: False")


async def test_requests_leave_nothing_to_the_garbage_collector(gateway: Gateway) -> None:
    """What they left kept it busy for 1.4 ms whenever a few hundred had come, and every stream waited meanwhile."""
    await gateway.get("/exchanges?collector=off")
    try:
        async with gateway.connect() as client:
            for _ in range(20):
                await client.get("/lines?count=3")
                await client.answer()
        async with asyncio.timeout(60):  # its own, and those whose end is a turn of the loop away; no others stay
            while (await gateway.get("/remaining"))["count"] > 3:
                pass
    finally:
        await gateway.get("/exchanges?collector=on")


async def test_small_packets_are_sent_at_once(gateway: Gateway) -> None:
    """Without TCP_NODELAY a token waits for the acknowledgement of the one before: 40 ms, where that is delayed."""
    assert (await gateway.get("/nodelay"))["nodelay"]


async def test_a_slow_websocket_reader_gets_every_byte_and_the_close_code(gateway: Gateway, name: str) -> None:
    count = 4 * MIB // BLOCK
    async with connect(f"{gateway.ws_url}/blocks?name={name}&count={count}", max_queue=1, compression=None) as client:
        await gateway.journal(name, "paused")
        received = [message async for message in client]
        assert b"".join(received) == b"".join(map(block, range(count)))  # type: ignore[arg-type]
    assert client.close_code == 1000


async def test_the_tail_of_a_websocket_is_not_cut_off_for_a_reader_slower_than_autobahns_close_timeout(
    gateway: Gateway,
    name: str,
) -> None:
    """Autobahn gives a client one second for its close frame; stock Daphne loses what is unread then."""
    async with connect(f"{gateway.ws_url}/blocks?name={name}&count=40", max_queue=1, compression=None) as client:
        first = await client.recv()
        closed_at = (await gateway.journal(name, "sent"))["events"]["sent"]
        while time.monotonic() < closed_at + 1.5:
            await gateway.get("/hello")
        received = [first, *[message async for message in client]]
        assert b"".join(received) == b"".join(map(block, range(40)))  # type: ignore[arg-type]
    assert client.close_code == 1000


async def test_other_clients_are_served_while_one_is_stalled(gateway: Gateway, name: str) -> None:
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as stalled:
        await stalled.get(f"/blocks?name={name}&count={STREAM_BLOCKS}")
        await gateway.journal(name, "paused")
        async with gateway.connect() as client:
            await client.get("/blocks?count=100")
            _, _, body = await client.answer()
            assert len(body) == 100 * BLOCK


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_disconnect_is_seen_within_100_ms_while_send_waits(gateway: Gateway, name: str, kind: str) -> None:
    delays = []
    for attempt in range(ATTEMPTS):
        call = f"{name}-{attempt}"
        async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
            await client.get(f"/blocks?name={call}&watch=1&count={STREAM_BLOCKS}", *TRANSPORTS[kind])
            await gateway.journal(call, "paused")
            left_at = time.monotonic()
        notes = await gateway.journal(call, f"{kind}.disconnect")
        delays.append(notes["events"][f"{kind}.disconnect"] - left_at)
        if delays[-1] < 0.1:
            break
    assert min(delays) < 0.1


async def test_send_raises_at_once_for_an_application_that_does_not_listen(gateway: Gateway, name: str) -> None:
    delays = []
    for attempt in range(ATTEMPTS):
        async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
            await client.get(f"/blocks?name={name}-{attempt}&count={STREAM_BLOCKS}")
            await gateway.journal(f"{name}-{attempt}", "paused")
            left_at = time.monotonic()
        delays.append((await gateway.journal(f"{name}-{attempt}", "gone"))["events"]["gone"] - left_at)
        if delays[-1] < 0.1:
            break
    assert min(delays) < 0.1


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_client_that_takes_nothing_for_the_stall_timeout_is_cut(serve: Serve, name: str, kind: str) -> None:
    gateway = await serve(stall_timeout_seconds=0.5)
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        asked_at = time.monotonic()
        await client.get(f"/blocks?name={name}&watch=1&count={STREAM_BLOCKS}", *TRANSPORTS[kind])
        notes = await gateway.journal(name, "gone")
        assert notes["events"]["gone"] - asked_at < 60
        counts = await gateway.until(lambda counts: counts["connections"] == 1)
        assert counts["stalled_total"] == 1
    if kind == "websocket":
        await gateway.journal(name, "disconnect 1006 stalled")


async def test_the_application_sets_the_stall_timeout_of_its_connection(gateway: Gateway, name: str) -> None:
    before = (await gateway.get("/counts"))["stalled_total"]
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/blocks?name={name}&stall=0.3&count={STREAM_BLOCKS}")
        await gateway.journal(name, "gone")
        assert (await gateway.get("/counts"))["stalled_total"] == before + 1


async def test_a_slow_reader_that_takes_something_is_not_stalled(serve: Serve, name: str) -> None:
    gateway = await serve(stall_timeout_seconds=4)
    count = 400
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/blocks?name={name}&count={count}")
        await client.head()
        for _ in range(20):
            await client.reader.readexactly(BLOCK)
            await asyncio.sleep(0.25)  # the reader's pace, not a wait for something
        rest = await client.read_to(b"\r\n0\r\n\r\n")
        assert len(rest) > (count - 20) * BLOCK
        assert (await gateway.get("/counts"))["stalled_total"] == 0


async def test_a_plain_answer_that_nobody_reads_is_cut_too(serve: Serve) -> None:
    gateway = await serve(stall_timeout_seconds=0.5)
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get("/large?bytes=8000000")
        await gateway.until(lambda counts: counts["stalled_total"] == 1 and counts["connections"] == 1)


async def test_a_plain_answer_larger_than_all_buffers_arrives_whole(gateway: Gateway) -> None:
    async with gateway.connect() as client:
        await client.get("/large?bytes=8000000")
        _, _, body = await client.answer()
        assert body == b"x" * 8_000_000


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_the_application_learns_when_the_client_took_what_it_sent(gateway: Gateway, name: str, kind: str) -> None:
    """A pump whose window is smaller than the buffers never waits in send(); it waits for accepted bytes."""
    count = 400
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/credit?name={name}&count={count}", *TRANSPORTS[kind])
        await gateway.until(lambda counts: counts["buffered_bytes"] > 0)
        sent = (await gateway.journal(name))["sent_bytes"]
        assert 0 < sent < BOUND
        reading = asyncio.create_task(client.read_away())
        notes = await gateway.journal(name, "sent")
        reading.cancel()
        assert notes["sent_bytes"] == count * BLOCK
        assert notes["accepted_bytes"] >= count * BLOCK


async def test_several_streams_follow_each_other_on_one_connection(gateway: Gateway) -> None:
    async with gateway.connect() as client:
        for count in (1, 7, 300):
            await client.get(f"/lines?count={count}")
            _, headers, body = await client.answer()
            assert headers["transfer-encoding"] == "chunked"
            expected = [b"data: %d\n\n" % number for number in range(count)]
            assert body == b"".join([*expected, b"data: [DONE]\n\n"])
        await client.get("/hello")
        status, _, _ = await client.answer()
        assert status == 200


async def test_a_stream_to_an_http_1_0_client_is_held_back_as_well(gateway: Gateway, name: str) -> None:
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.send(f"GET /blocks?name={name}&count=1000 HTTP/1.0\r\n\r\n".encode())
        assert (await gateway.journal(name, "paused"))["sent_bytes"] < BOUND
        _, headers = await client.head()
        assert "transfer-encoding" not in headers
        assert await client.rest() == b"".join(map(block, range(1000)))


async def test_a_head_request_for_a_stream_has_no_body(gateway: Gateway) -> None:
    async with gateway.connect() as client:
        await client.send(b"HEAD /lines?count=3 HTTP/1.1\r\nHost: test\r\n\r\n")
        status, _ = await client.head()
        assert status == 200
        await client.get("/hello")
        status, _, body = await client.answer()
        assert (status, body[:1]) == (200, b"{")


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    async with gateway.connect() as client:
        request = "GET /lines?count={} HTTP/1.1\r\nHost: test\r\n\r\n"
        await client.send("".join(request.format(count) for count in (5, 2, 9)).encode())
        for count in (5, 2, 9):
            _, _, body = await client.answer()
            assert body.count(b"data: ") == count + 1


async def test_a_client_that_asks_much_and_reads_nothing_is_not_read_either(gateway: Gateway) -> None:
    before = gateway.rss_bytes
    request = b"GET /large?bytes=100000 HTTP/1.1\r\nHost: test\r\n\r\n"
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        async with gave_up_after(1):
            for _ in range(200_000):
                await client.send(request)
        assert gateway.rss_bytes - before < 8 * MIB


async def test_a_client_that_pings_much_and_reads_nothing_costs_no_memory(gateway: Gateway, name: str) -> None:
    before = gateway.rss_bytes
    ping = b"\x89\xfd\0\0\0\0" + b"p" * 125
    async with gateway.connect(receive_buffer=SMALL_RECEIVE_BUFFER) as client:
        await client.get(f"/echo?name={name}", *UPGRADE)
        await client.head()
        async with gave_up_after(1.5):
            for _ in range(1_000_000):
                await client.send(ping * 100)
                await asyncio.sleep(0)
        assert gateway.rss_bytes - before < 4 * MIB


async def test_a_flood_of_frames_waits_in_the_kernel_while_nobody_reads(gateway: Gateway, name: str) -> None:
    before, count = gateway.rss_bytes, 20_000
    url = f"{gateway.ws_url}/deaf?name={name}&count={count}"
    async with connect(url, compression=None, ping_interval=None) as client:  # its pings wait behind the flood
        await gateway.journal(name, "open")

        async def flood() -> None:
            for _ in range(count):
                await client.send("x" * 1000)

        flooding = asyncio.create_task(flood())
        done, _ = await asyncio.wait({flooding}, timeout=1)
        assert not done
        assert gateway.rss_bytes - before < 4 * MIB
        await gateway.get(f"/release?of={name}")
        await flooding
        await gateway.journal(name, "read")
        with pytest.raises(websockets.ConnectionClosed):
            await client.recv()
