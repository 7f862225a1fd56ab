"""Both clients against a real gateway and simulated workers: what they give is what the log holds."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from headrace_client import (
    AsyncHeadraceClient,
    AsyncStream,
    ConnectionLostError,
    ConnectionRejectedError,
    Delta,
    HeadraceClient,
    InvalidApiKeyError,
    InvalidRequestError,
    Message,
    ModelNotFoundError,
    Queued,
    Started,
    Stream,
    StreamNotFoundError,
)
from headrace_wire import redis_keys
from headrace_wire.messages import StreamState
from tests.support.impatient_gateway import impatient_gateway
from tests.support.live_stack import LiveStack
from tests.support.processes import free_port
from tests.support.stream_probe import StreamProbe

ASK: list[Message] = [{"role": "user", "content": "Say something."}]
RESTART_SECONDS = 240.0
"""In which a gateway is there again; clients are as patient."""


@pytest.fixture
def client(live_stack: LiveStack) -> Iterator[HeadraceClient]:
    with HeadraceClient(live_stack.base_url, live_stack.api_key, reconnect_seconds=RESTART_SECONDS) as client:
        yield client


@pytest.fixture
async def async_client(live_stack: LiveStack) -> AsyncIterator[AsyncHeadraceClient]:
    async with AsyncHeadraceClient(live_stack.base_url, live_stack.api_key) as client:
        yield client


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Threads for readers. The stack's processes are started by the main thread: they end with the one that did it."""
    with ThreadPoolExecutor() as executor:
        yield executor


def take(stream: Stream, count: int) -> list[Delta]:
    return [next(stream) for _ in range(count)]


async def take_async(stream: AsyncStream, count: int) -> list[Delta]:
    return [await anext(stream) for _ in range(count)]


def test_a_stream_from_start_to_end(client: HeadraceClient, probe: StreamProbe) -> None:
    with client.generate("quick", ASK, max_tokens=30, ignore_eos=True) as stream:
        assert stream.stream_id is not None
        events = list(stream.events())
    assert [type(event) for event in events[:2]] == [Queued, Started]
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == stream.text == probe.text(stream.stream_id)
    assert stream.seq == deltas[-1].seq
    assert stream.end is not None
    assert (stream.end.state, stream.finish_reason) == ("finished", "length")
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 30
    assert stream.end.timings.ttft_ms is not None
    assert list(stream) == [], "it is over"
    middle = len(deltas) // 2  # a busy gateway sends several tokens in one frame
    with client.follow(stream.stream_id, after=deltas[middle].seq) as again:
        assert again.read() == "".join(delta.text for delta in deltas[middle + 1 :])
    assert again.usage == stream.usage


async def test_a_stream_from_start_to_end_async(async_client: AsyncHeadraceClient, probe: StreamProbe) -> None:
    async with async_client.generate("quick", ASK, max_tokens=30, ignore_eos=True) as stream:
        assert stream.stream_id is not None
        events = [event async for event in stream.events()]
    assert [type(event) for event in events[:2]] == [Queued, Started]
    assert stream.text == await asyncio.to_thread(probe.text, stream.stream_id)
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 30
    again = async_client.follow(stream.stream_id)
    assert await again.read() == stream.text


def test_the_next_stream_takes_the_same_connection(client: HeadraceClient) -> None:
    client.generate("quick", ASK, max_tokens=2).read()
    (kept,) = client._connections._idle
    with client.generate("quick", ASK, max_tokens=2) as stream:
        assert stream._connection is kept
        assert len(stream.read()) > 0
    assert client._connections._idle == [kept]


async def test_the_next_stream_takes_the_same_connection_async(async_client: AsyncHeadraceClient) -> None:
    await async_client.generate("quick", ASK, max_tokens=2).read()
    (kept,) = async_client._connections._idle
    async with async_client.generate("quick", ASK, max_tokens=2) as stream:
        assert stream._connection is kept
        await stream.read()
    assert async_client._connections._idle == [kept]


def test_the_gateway_dies_in_mid_stream(
    client: HeadraceClient, live_stack: LiveStack, probe: StreamProbe, aside: ThreadPoolExecutor
) -> None:
    client.generate("quick", ASK, max_tokens=1).read()  # an idle connection, which dies as well
    with client.generate("slow", ASK, max_tokens=200, ignore_eos=True) as stream:
        seen = take(stream, 20)
        rest = aside.submit(list, stream)
        live_stack.kill_gateway()
        live_stack.start_gateway()
        seen += rest.result(timeout=RESTART_SECONDS)
    assert stream.stream_id is not None
    assert "".join(delta.text for delta in seen) == stream.text == probe.text(stream.stream_id)
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 200
    assert client.generate("quick", ASK, max_tokens=1).read(), "a dead idle connection is not used"


def test_the_gateway_dies_in_mid_stream_async(
    live_stack: LiveStack, probe: StreamProbe, aside: ThreadPoolExecutor
) -> None:
    under_way = threading.Event()

    async def read() -> tuple[AsyncStream, list[Delta]]:
        async with (
            AsyncHeadraceClient(live_stack.base_url, live_stack.api_key, reconnect_seconds=RESTART_SECONDS) as client,
            client.generate("slow", ASK, max_tokens=200, ignore_eos=True) as stream,
        ):
            seen = await take_async(stream, 20)
            under_way.set()
            return stream, seen + [delta async for delta in stream]

    reading = aside.submit(asyncio.run, read())
    assert under_way.wait(RESTART_SECONDS)
    live_stack.kill_gateway()
    live_stack.start_gateway()
    stream, seen = reading.result(timeout=RESTART_SECONDS)
    assert stream.stream_id is not None
    assert "".join(delta.text for delta in seen) == stream.text == probe.text(stream.stream_id)
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 200


async def test_two_viewers(async_client: AsyncHeadraceClient, probe: StreamProbe) -> None:
    async with async_client.generate("slow", ASK, max_tokens=80, ignore_eos=True) as first:
        assert first.stream_id is not None
        await take_async(first, 10)
        position = first.seq
        async with async_client.follow(first.stream_id) as whole, async_client.follow(
            first.stream_id, after=position
        ) as rest:  # fmt: skip
            texts = await asyncio.gather(first.read(), whole.read(), rest.read())
    golden = await asyncio.to_thread(probe.text, first.stream_id)
    deltas = await asyncio.to_thread(probe.deltas, first.stream_id)
    assert list(texts) == [golden, golden, "".join(delta.text for delta in deltas if delta.seq > position)]
    assert first.usage == whole.usage == rest.usage


def test_cancel_from_another_thread(client: HeadraceClient, probe: StreamProbe) -> None:
    with client.generate("slow", ASK, max_tokens=2000, ignore_eos=True) as stream:
        take(stream, 5)
        canceller = threading.Thread(target=stream.cancel)
        canceller.start()
        stream.read()
        canceller.join()
        stream.cancel()  # again: nothing happens
    assert stream.stream_id is not None
    assert stream.end is not None
    assert (stream.end.state, stream.finish_reason) == ("cancelled", "abort")
    ended = probe.wait_for_end(stream.stream_id)
    assert ended.state is StreamState.CANCELLED
    assert stream.end.usage.completion_tokens == ended.usage.completion_tokens < 2000
    assert stream.text == probe.text(stream.stream_id)


async def test_cancel_before_anything_came_and_by_id(async_client: AsyncHeadraceClient) -> None:
    early = async_client.generate("slow", ASK, max_tokens=2000, ignore_eos=True)
    await early.cancel()
    await early.read()
    assert early.end is not None
    assert early.end.state == "cancelled"
    async with async_client.generate("slow", ASK, max_tokens=2000, ignore_eos=True) as left:
        assert left.stream_id is not None
    end = await async_client.cancel(left.stream_id)
    assert end is not None
    assert end.state == "cancelled"
    again = await async_client.cancel(left.stream_id)
    assert again is not None
    # Text that came before the cancel is sent to both, and each has its own first one.
    assert replace(again, timings=replace(again.timings, ttft_ms=end.timings.ttft_ms)) == end


def test_a_cancel_outlives_the_gateway(
    client: HeadraceClient, live_stack: LiveStack, aside: ThreadPoolExecutor
) -> None:
    with client.generate("slow", ASK, max_tokens=2000, ignore_eos=True) as stream:
        take(stream, 5)
        live_stack.kill_gateway()
        stream.cancel()
        rest = aside.submit(stream.read)
        live_stack.start_gateway()
        rest.result(timeout=RESTART_SECONDS)
    assert stream.end is not None
    assert stream.end.state == "cancelled"


def credit_of(probe: StreamProbe, stream_id: str) -> int:
    credit: Any = probe.redis.hget(redis_keys.stream_key(stream_id), "credit")
    return int(credit or 0)


def test_acknowledgements_make_progress_over_a_small_window(client: HeadraceClient, probe: StreamProbe) -> None:
    with client.generate("quick", ASK, window=8, max_tokens=300, ignore_eos=True) as stream:
        assert stream.stream_id is not None
        take(stream, 150)
        text = stream.read()
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 300
    assert text == probe.text(stream.stream_id)
    assert credit_of(probe, stream.stream_id) >= 250


async def test_acknowledgements_make_progress_over_a_small_window_async(
    async_client: AsyncHeadraceClient, probe: StreamProbe
) -> None:
    async with async_client.generate("quick", ASK, window=8, max_tokens=300, ignore_eos=True) as stream:
        assert stream.stream_id is not None
        text = await stream.read()
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 300
    assert text == await asyncio.to_thread(probe.text, stream.stream_id)
    assert await asyncio.to_thread(credit_of, probe, stream.stream_id) >= 250


def test_a_reader_that_was_cut_off_for_its_pause_goes_on(live_stack: LiveStack, probe: StreamProbe) -> None:
    with (
        impatient_gateway(live_stack) as (gateway, base_url),
        HeadraceClient(base_url, live_stack.api_key) as client,
        client.generate("slow", ASK, max_tokens=100, ignore_eos=True) as stream,
    ):
        assert stream.stream_id is not None
        take(stream, 5)
        gateway.wait_for_line("client_stalled")
        assert stream.read() == probe.text(stream.stream_id)
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 100


@pytest.mark.parametrize("key", ["nonsense", "sk-hr-aaaaaaaaaaaa-" + "A" * 40])
async def test_a_bad_key(live_stack: LiveStack, key: str) -> None:
    with HeadraceClient(live_stack.base_url, key) as client, pytest.raises(InvalidApiKeyError) as raised:
        await asyncio.to_thread(client.generate("quick", ASK).read)
    assert key not in str(raised.value)
    async with AsyncHeadraceClient(live_stack.base_url, key) as async_client:
        with pytest.raises(InvalidApiKeyError):
            async with async_client.follow("strm-" + "0" * 24) as stream:
                await stream.read()


def test_refusals_have_classes_and_leave_the_client_usable(client: HeadraceClient) -> None:
    with pytest.raises(ModelNotFoundError), client.generate("nope", ASK):
        pass
    with pytest.raises(InvalidRequestError) as raised, client.generate("quick", ASK, temperature=9.0):
        pass
    assert raised.value.param == "temperature"
    wrong: Any = "hot"
    with pytest.raises(InvalidRequestError) as raised, client.generate("quick", ASK, temperature=wrong):
        pass
    assert raised.value.param == "temperature"
    with pytest.raises(StreamNotFoundError):
        client.follow("strm-" + "0" * 24).read()
    with pytest.raises(StreamNotFoundError):
        client.cancel("strm-" + "0" * 24)
    assert client.generate("quick", ASK, max_tokens=1).read()


async def test_nobody_there_and_somebody_else_there(live_stack: LiveStack) -> None:
    async with AsyncHeadraceClient(f"http://127.0.0.1:{free_port()}", "sk", connect_seconds=0.5) as client:
        with pytest.raises(ConnectionLostError):
            await client.generate("quick", ASK).read()
    async with AsyncHeadraceClient(live_stack.base_url.replace("http", "ws") + "/livez", "sk") as client:
        with pytest.raises(ConnectionRejectedError):
            await client.generate("quick", ASK).read()
    sync_client = HeadraceClient(f"http://127.0.0.1:{free_port()}", "sk", connect_seconds=0.5)
    with pytest.raises(ConnectionLostError):
        sync_client.generate("quick", ASK).read()


async def test_a_reader_that_was_interrupted_goes_on(async_client: AsyncHeadraceClient, probe: StreamProbe) -> None:
    async with async_client.generate("slow", ASK, max_tokens=120, ignore_eos=True) as stream:
        assert stream.stream_id is not None
        interruptions = 0
        while stream.end is None:
            try:
                async with asyncio.timeout(0.06):
                    await stream.read()
            except TimeoutError:
                interruptions += 1
    assert interruptions > 3
    assert stream.text == await asyncio.to_thread(probe.text, stream.stream_id)
