"""One client of a crowd: as little work as a client can be, so that a thousand of them do not hold each other up."""

import asyncio
import contextlib
import json
import time

from tests.load.clients import PROMPT
from tests.load.stack import HOST, BenchStack

SERVED, REFUSED = 200, 503
ANSWER_SECONDS = 60.0
"""How long a crowd waits for all of its first answers."""
_CONTENT = b'"content":"'
_HEAD_END = b"\r\n\r\n"


class CrowdClient(asyncio.Protocol):
    """Asks as soon as it is connected, and reads until it leaves; whatever goes wrong is noted."""

    def __init__(self, request: bytes) -> None:
        self.status = 0
        self.retry_seconds = 0
        self.place = 0
        """In line, as the first headers told; 0 for none."""
        self.asked_at = 0.0
        self.answered_at = 0.0
        self.arrivals: list[float] = []
        """When messages came that bring tokens."""
        self.is_cut_off = False
        self.answered = asyncio.Event()
        self.began = asyncio.Event()
        self._request = request
        self._head = b""
        self._transport: asyncio.Transport | None = None

    @property
    def seconds(self) -> float:
        """From the request to the head of its answer."""
        return self.answered_at - self.asked_at

    @property
    def is_wrong(self) -> bool:
        """Whether it was neither served to the end, nor given a place, nor refused with a time to come back."""
        if self.status == SERVED:
            return self.is_cut_off or not (self.arrivals or self.place)
        return self.status != REFUSED or not self.retry_seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.asked_at = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Notes when it came."""
        if not self.status:
            self._head += data
            if _HEAD_END in self._head:
                self._take_head()
        elif _CONTENT in data:
            self.arrivals.append(time.perf_counter())
            self.began.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        """Notes it, unless it went by itself."""
        self.is_cut_off = self._transport is not None
        self.answered.set()

    def leave(self) -> None:
        """Goes without a word."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

    def _take_head(self) -> None:
        self.answered_at = time.perf_counter()
        first, *lines = self._head.partition(_HEAD_END)[0].lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        self.status = int(first.split()[1])
        self.retry_seconds = int(headers.get(b"retry-after", b"0"))
        self.place = int(headers.get(b"x-headrace-queue-position", b"0"))
        self.answered.set()


async def visitors(stack: BenchStack, count: int, *, per_second: float) -> list[CrowdClient]:
    """Has clients come one after another; returns them, in that order, once all are answered. They stay.

    Raises:
        TimeoutError: Some were not answered.
    """
    loop, request = asyncio.get_running_loop(), _request(stack)
    clients = [CrowdClient(request) for _ in range(count)]
    arriving, first_at = [], loop.time()
    for number, client in enumerate(clients):
        await asyncio.sleep(max(0.0, first_at + number / per_second - loop.time()))
        arriving.append(asyncio.create_task(_arrive(client, stack)))
    async with asyncio.timeout(ANSWER_SECONDS):
        await asyncio.gather(*arriving)
    return clients


async def _arrive(client: CrowdClient, stack: BenchStack) -> None:
    with contextlib.suppress(OSError):  # then it has no status, which is wrong
        await asyncio.get_running_loop().create_connection(lambda: client, HOST, stack.port)
        await client.answered.wait()


def _request(stack: BenchStack) -> bytes:
    request = {
        "model": stack.model,
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "max_tokens": 4000,
        "ignore_eos": True,
    }
    body = json.dumps(request).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: crowd\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
    )
    return head % (stack.api_key.encode(), len(body)) + body
