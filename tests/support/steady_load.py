"""Clients that have one stream after another, whose habits a test changes while they run; each notes what it saw.

WebSockets with acknowledgements; when a text came is what the kernel noted, however late a client reads it. Nothing
here is timed: what is changed holds for streams that begin after it, and `renewed` returns when only such streams are
left.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.latency.measures import Measure
from tests.load.stamped_clients import StampedWebSocket, WebSocketEndedError, stamped_websocket
from tests.support.live_stack import LiveStack

STALLED_CODE = 4408
"""The close code of a client that acknowledged nothing for too long."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How the clients of one deployment ask and read."""

    clients: int = 1
    tokens: int = 16
    prompt: Callable[[int], str] = lambda number: f"Tell me of wheel {number}."
    """By the number of the stream."""
    api_key: str = ""
    """Another one than the stack's."""
    window: int | None = None
    pause_seconds: float = 0.0
    """Before each acknowledgement."""
    acknowledge_every: int = 4
    is_dark: Callable[[int], bool] = lambda _: False
    """Whether nothing comes back from the client of that stream: it acknowledges nothing."""


@dataclass
class Seen:
    """What clients saw of all streams so far, in seconds: from their requests, by the kernel's clock for what came."""

    durations: dict[Measure, list[float]] = field(
        default_factory=lambda: {Measure.TTFT: [], Measure.GAP: [], Measure.TOTAL: []}
    )
    unsure: dict[Measure, int] = field(default_factory=dict)
    """How many of them ended, or began, with a text that has the time of the next one: both were read at once."""
    streams: int = 0
    tokens: int = 0
    cut: int = 0
    """Streams that were closed because nothing was acknowledged."""

    def take(self, measure: Measure, seconds: float) -> None:
        """Notes one."""
        self.durations[measure].append(seconds)

    def doubt(self, measure: Measure, count: int) -> None:
        """Notes that so many of them are not known exactly."""
        self.unsure[measure] = self.unsure.get(measure, 0) + count


@dataclass
class SteadyLoad:
    """The clients of one deployment."""

    stack: LiveStack
    deployment: str
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

    def _connected(self, api_key: str) -> AbstractAsyncContextManager[StampedWebSocket]:
        address = urlsplit(self.stack.base_url)
        assert address.hostname is not None
        assert address.port is not None
        return stamped_websocket(address.hostname, address.port, api_key or self.stack.api_key)

    async def _streams(self, number: int, connection: StampedWebSocket) -> None:
        """Has streams until others, or somebody else, shall have them."""
        api_key = self.habits.api_key
        while number < self.habits.clients and not self._is_over and self.habits.api_key == api_key:
            habits = self._running[number] = self.habits
            self._tell()
            try:
                await _Stream(self, habits, connection).run()
            except WebSocketEndedError as error:
                if error.code != STALLED_CODE:
                    raise
                self.seen.cut += 1
                return  # and connect again
            finally:
                del self._running[number]
                self._tell()


class _Stream:
    """One stream as its client sees it."""

    def __init__(self, load: SteadyLoad, habits: Habits, connection: StampedWebSocket) -> None:
        self._seen, self._habits, self._connection = load.seen, habits, connection
        self._deployment, self._number = load.deployment, load.seen.streams
        self._seen.streams += 1
        self._asked_at = self._last_at = 0.0
        self._texts = self._seq = self._acknowledged = 0

    async def run(self) -> None:
        """Asks, and reads to the end.

        Raises:
            WebSocketEndedError: The connection did first; what came counts.
        """
        habits = self._habits
        frame: dict[str, Any] = {
            "type": "generate",
            "model": self._deployment,
            "messages": [{"role": "user", "content": habits.prompt(self._number)}],
            "max_tokens": habits.tokens,
        }
        if habits.window is not None:
            frame["window"] = habits.window
        text = json.dumps(frame)
        self._asked_at = time.perf_counter()
        await self._connection.send(text)
        try:
            while True:
                told = json.loads(await self._connection.recv(decode=False))
                if told["type"] == "end":
                    self._seen.take(Measure.TOTAL, self._connection.last_arrived_at - self._asked_at)
                    self._seq = told["usage"]["completion_tokens"]
                    return
                if told["type"] == "delta":
                    await self._take(told)
                else:
                    assert told["type"] in {"started", "queued", "waiting"}, told
        finally:
            self._seen.tokens += self._seq

    async def _take(self, delta: dict[str, Any]) -> None:
        """Notes a text, and acknowledges where it is time to."""
        now, habits = self._connection.last_arrived_at, self._habits
        self._texts, self._seq = self._texts + 1, delta["seq"]
        if self._texts == 1:
            self._seen.take(Measure.TTFT, now - self._asked_at)
        else:
            self._seen.take(Measure.GAP, now - self._last_at)
            if now == self._last_at:  # the one before came earlier, nobody knows when: its gap, or TTFT, and this one
                self._seen.doubt(Measure.GAP, 1 if self._texts == 2 else 2)
                self._seen.doubt(Measure.TTFT, int(self._texts == 2))
        self._last_at = now
        if not habits.is_dark(self._number) and self._seq >= self._acknowledged + habits.acknowledge_every:
            await asyncio.sleep(habits.pause_seconds)
            self._acknowledged = self._seq
            acknowledgement = {"type": "ack", "stream_id": delta["stream_id"], "seq": self._seq}
            await self._connection.send(json.dumps(acknowledgement))


@asynccontextmanager
async def steady_loads(loads: Collection[SteadyLoad]) -> AsyncIterator[None]:
    """Has all clients run; what is left of them is dropped at the end."""
    for load in loads:
        load.change(load.habits)
    try:
        yield
    finally:
        await asyncio.gather(*(load.drop() for load in loads))
