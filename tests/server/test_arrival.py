"""A request has arrived when the kernel has it, however late it is read and however long it waits after that."""

import array
import asyncio
import fcntl
import json
import signal
import socket
import struct
import termios
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import psutil
import pytest
from websockets.asyncio.client import connect

from headrace.server import arrival
from tests.server.conftest import Gateway

REQUESTS = 9
BUSY_SECONDS = 0.02


async def test_requests_that_come_together_have_arrived_before_they_take_their_turns(gateway: Gateway) -> None:
    async with AsyncExitStack() as connections:
        clients = [await connections.enter_async_context(gateway.connect()) for _ in range(REQUESTS + 1)]
        for client in clients:
            await client.get("/hello")
            await client.answer()
        first, *others = clients
        await first.get("/times?first=1&busy=3")
        await first.reader.readuntil(b"begun")
        for client in others:
            await client.get(f"/times?busy={BUSY_SECONDS}")
        waited = []
        for client in others:
            _, _, body = await client.answer()
            arrived_at, had_at = json.loads(body)
            waited.append(had_at - arrived_at)
    assert min(waited) >= 0
    assert max(waited) > BUSY_SECONDS * (REQUESTS // 2), "the last ones waited for those before them"


async def test_a_message_has_arrived_before_the_application_asks_for_it(gateway: Gateway, name: str) -> None:
    async with asyncio.timeout(60), connect(f"{gateway.ws_url}/times?name={name}") as client:
        await client.send("now")
        await (await client.ping())
        await gateway.get(f"/release?of={name}")
        received_at, had_at = json.loads(await client.recv())
    assert received_at < had_at


@asynccontextmanager
async def standing_still(gateway: Gateway) -> AsyncIterator[None]:
    """The whole process does, as one that waits for its turn on a busy machine."""
    process = psutil.Process(gateway.process.pid)
    gateway.process.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: process.status() == psutil.STATUS_STOPPED)
        yield
    finally:
        gateway.process.send_signal(signal.SIGCONT)


async def delivered(sock: socket.socket) -> float:
    """Returns `time.perf_counter()` when the other side's kernel has all that was sent."""
    unacknowledged = array.array("i", [0])

    def is_empty() -> bool:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, unacknowledged)
        return unacknowledged[0] == 0

    await until(is_empty)
    return time.perf_counter()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  nobody tells
        await asyncio.sleep(0.01)


async def test_a_request_that_is_read_late_has_arrived_when_it_came(gateway: Gateway) -> None:
    async with asyncio.timeout(60), gateway.connect() as client:
        await client.get("/hello")
        await client.answer()
        async with standing_still(gateway):
            await client.get("/times")
            there_at = await delivered(client.writer.get_extra_info("socket"))
        _, _, body = await client.answer()
    arrived_at, had_at = json.loads(body)
    assert arrived_at < there_at < had_at, "both processes have one monotonic clock"


async def test_a_message_that_is_read_late_has_arrived_when_it_came(gateway: Gateway, name: str) -> None:
    async with asyncio.timeout(60), connect(f"{gateway.ws_url}/times?name={name}") as client:
        await (await client.ping())
        async with standing_still(gateway):
            await client.send("now")
            there_at = await delivered(client.transport.get_extra_info("socket"))
        await gateway.get(f"/release?of={name}")
        received_at, had_at = json.loads(await client.recv())
    assert received_at < there_at < had_at


@pytest.mark.parametrize("age", [-0.5, 61.0], ids=["of the future", "of long ago"])
def test_a_note_that_cannot_be_right_is_not_believed(age: float) -> None:
    before = time.perf_counter()
    note = struct.pack("@qq", *divmod(time.time_ns() - int(age * 1e9), 10**9))
    read_at = arrival.arrived_at([(socket.SOL_SOCKET, 35, note)])
    assert before <= read_at <= time.perf_counter()
    assert before <= arrival.arrived_at([]) <= time.perf_counter()


async def test_the_end_of_an_answer_is_with_the_kernel_when_it_was_sent(gateway: Gateway, name: str) -> None:
    async with asyncio.timeout(60), gateway.connect() as client:
        await client.get(f"/times?name={name}")
        await client.answer()
        assert (await gateway.journal(name))["accepted_bytes"] > 0, "it does not wait for the end of the loop's turn"
