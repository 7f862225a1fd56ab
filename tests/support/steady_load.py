"""Clients that have one stream after another, whose habits a test changes while they run; each notes what it saw.

WebSockets with acknowledgements. Nothing here is timed: what is changed holds for streams that begin after it, and
`renewed` returns when only such streams are left.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from headrace_wire.cancellation import cancel_and_wait
from tests.support.live_stack import LiveStack

STALLED_CODE = 4408
"""The close code of a client that acknowledged nothing for too long."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How the clients of one deployment ask and read."""

    clients: int = 1
    prompt: Callable[[int], str] = lambda number: f"Tell me of wheel {number}."
    """By the number of the stream."""
    api_key: str = ""
    """Another one than the stack's."""
    window: int | None = None
    pause_seconds: float = 0.0
    """Before each acknowledgement."""
    acknowledge_every: int = 4
    is_dark: Callable[[int], bool] = lambda _: False
    """Whether nothing comes back from the client of that stream once it has its first text."""


@dataclass
class Seen:
    """What clients saw of all streams so far, in seconds by their own clock."""

    ttfts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    told_ttfts: list[float] = field(default_factory=list)
    """What the gateway said at the end of each."""
    streams: int = 0
    tokens: int = 0
    cut: int = 0
    """Streams that were closed because nothing was acknowledged."""


@dataclass
class SteadyLoad:
    """The clients of one deployment."""

    stack: LiveStack
    deployment: str
    tokens: int
    habits: Habits
    seen: Seen = field(default_factory=Seen)
    _clients: list[asyncio.Task[None]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _running: dict[int, Habits] = field(default_factory=dict)
    """Habits of the streams that run, by client."""
    _failed: BaseException | None = None
    _is_over: bool = False

    def change(self, habits: Habits) -> None:
        """Has streams from here on run otherwise."""
        self.habits = habits
        for number in range(len(self._clients), habits.clients):
            self._clients.append(asyncio.create_task(self._client(number)))
        self._tell()

    async def renewed(self) -> None:
        """Waits until all that should run runs, and began with the present habits."""
        await self._until(
            lambda: (
                set(self._running) == set(range(self.habits.clients))
                and all(habits is self.habits for habits in self._running.values())
            )
        )

    async def end(self) -> None:
        """Has streams come to their ends, and begins none."""
        self._is_over = True
        self._tell()
        await self._until(lambda: not self._running)
        await self.drop()

    async def drop(self) -> None:
        """Leaves streams where they are."""
        await cancel_and_wait(*self._clients)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while True:
            if self._failed is not None:
                raise self._failed
            if is_so():
                return
            self._changed.clear()
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()

    async def _client(self, number: int) -> None:
        try:
            while True:
                await self._until(lambda: number < self.habits.clients and not self._is_over)
                async with self._connected(self.habits.api_key) as connection:
                    await self._streams(number, connection)
        except Exception as error:  # noqa: BLE001  told to whoever waits
            self._failed = error
            self._running.pop(number, None)
            self._tell()

    def _connected(self, api_key: str) -> Any:
        headers = {"Authorization": f"Bearer {api_key or self.stack.api_key}"}
        # Frames are taken off the wire, whatever the client makes of them: a close frame is never missed.
        options: dict[str, Any] = {"subprotocols": ["headrace.v1"], "max_queue": None, "ping_interval": None,
                                   "open_timeout": None}  # fmt: skip
        return connect(self.stack.ws_url, additional_headers=headers, **options)

    async def _streams(self, number: int, connection: ClientConnection) -> None:
        """Has streams until others, or somebody else, shall have them."""
        api_key = self.habits.api_key
        while number < self.habits.clients and not self._is_over and self.habits.api_key == api_key:
            habits = self._running[number] = self.habits
            self._tell()
            try:
                await self._stream(connection, habits)
            except ConnectionClosed as error:
                if error.rcvd is None or error.rcvd.code != STALLED_CODE:
                    raise
                self.seen.cut += 1
                return  # and connect again
            finally:
                del self._running[number]
                self._tell()

    async def _stream(self, connection: ClientConnection, habits: Habits) -> None:
        seen, number = self.seen, self.seen.streams
        seen.streams += 1
        prompt, is_dark = [{"role": "user", "content": habits.prompt(number)}], habits.is_dark(number)
        frame = {"type": "generate", "model": self.deployment, "messages": prompt, "max_tokens": self.tokens}
        if habits.window is not None:
            frame["window"] = habits.window
        asked_at, last_at, acknowledged = time.perf_counter(), 0.0, 0
        await connection.send(json.dumps(frame))
        async for told in _frames(connection):
            now = time.perf_counter()
            if told["type"] == "end":
                seen.totals.append(now - asked_at)
                seen.told_ttfts.append(told["timings"]["ttft_ms"] / 1000)
                seen.tokens += told["usage"]["completion_tokens"]
                return
            if told["type"] != "delta":
                assert told["type"] in {"started", "queued", "waiting"}, told
                continue
            if last_at:
                seen.gaps.append(now - last_at)
            else:
                seen.ttfts.append(now - asked_at)
            last_at = now
            if is_dark:
                await connection.wait_closed()
            if told["seq"] >= acknowledged + habits.acknowledge_every:
                await asyncio.sleep(habits.pause_seconds)
                acknowledged = told["seq"]
                await connection.send(json.dumps({"type": "ack", "stream_id": told["stream_id"], "seq": acknowledged}))


async def _frames(connection: ClientConnection) -> AsyncIterator[dict[str, Any]]:
    while True:
        yield json.loads(await connection.recv())


@asynccontextmanager
async def steady_loads(loads: dict[str, SteadyLoad]) -> AsyncIterator[None]:
    """Has all clients run; what is left of them is dropped at the end."""
    for load in loads.values():
        load.change(load.habits)
    try:
        yield
    finally:
        await asyncio.gather(*(load.drop() for load in loads.values()))
