"""The simulated engine's stepping in a child process: length-prefixed msgpack over a socket pair.

`python -m headrace_worker.simulated_process FD PARENT` is the child. SIGUSR1 makes it sick: it gives requests up.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import msgspec
from msgspec import Struct

from headrace_wire.parent_death import die_with_parent
from headrace_worker.config import child_environment
from headrace_worker.engine import Deliver, EngineDeadError, EngineOutput, EngineRequest, EngineStats
from headrace_worker.simulated_config import CoreConfig
from headrace_worker.simulated_core import SimulatedCore

START_SECONDS = 60.0
"""For an interpreter and its imports, on a machine that does a lot besides."""
ANSWER_SECONDS = 10.0


class _Submit(Struct, array_like=True, tag="submit"):
    request: EngineRequest


class _Credit(Struct, array_like=True, tag="credit"):
    positions: dict[str, int]


class _Limit(Struct, array_like=True, tag="limit"):
    max_running: int


class _Abort(Struct, array_like=True, tag="abort"):
    call: int
    request_ids: list[str]


class _Query(Struct, array_like=True, tag="query"):
    call: int


class _Step(Struct, array_like=True, tag="step"):
    outputs: list[EngineOutput]


class _Answer(Struct, array_like=True, tag="answer"):
    call: int
    stats: EngineStats


_encoder = msgspec.msgpack.Encoder()
_to_child = msgspec.msgpack.Decoder(_Submit | _Credit | _Limit | _Abort | _Query)
_to_parent = msgspec.msgpack.Decoder(_Step | _Answer)


def _frame(message: Struct) -> bytes:
    payload = _encoder.encode(message)
    return len(payload).to_bytes(4, "little") + payload


class _Frames(asyncio.Protocol):
    """Cuts a byte stream into frames, without a task that would have to wake up for each."""

    def __init__(self, take: Callable[[memoryview], None], closed: Callable[[], None]) -> None:
        self._take = take
        self._closed = closed
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        """Told by asyncio: bytes came."""
        buffer = self._buffer + data if self._buffer else data
        start, end = 0, len(buffer)
        view = memoryview(buffer)
        while end - start >= 4:
            length = int.from_bytes(view[start : start + 4], "little")
            if end - start - 4 < length:
                break
            self._take(view[start + 4 : start + 4 + length])
            start += 4 + length
        self._buffer = bytes(view[start:])

    def connection_lost(self, _exc: Exception | None) -> None:
        """Told by asyncio: the other side has closed."""
        self._closed()


class SimulatedProcess:
    """The worker's end."""

    def __init__(self, deliver: Deliver, died: Callable[[], None]) -> None:
        self._deliver = deliver
        self._died = died
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._calls: dict[int, asyncio.Future[EngineStats]] = {}
        self._numbers = itertools.count()

    @classmethod
    async def start(cls, config: CoreConfig, *, deliver: Deliver, died: Callable[[], None]) -> Self:
        """Start the child and hand it its configuration; where that fails, or is given up, no child is left.

        Raises:
            EngineDeadError: it does not answer within `START_SECONDS`, or has ended.
        """
        self = cls(deliver, died)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headrace_worker.simulated_process",
                str(theirs.fileno()),
                str(os.getpid()),
                pass_fds=[theirs.fileno()],
                env=child_environment(),
                start_new_session=True,
            )
        try:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_unix_connection(lambda: _Frames(self._take, self._closed), sock=ours)
            self._transport.write(_frame(config))
            await self._call(_Query, START_SECONDS)
        except BaseException:
            await self.shutdown()
            raise
        return self

    async def submit(self, request: EngineRequest) -> None:
        """Hand a request over."""
        self._write(_Submit(request))

    def credit(self, positions: Mapping[str, int]) -> None:
        """Set how far requests may generate."""
        with contextlib.suppress(EngineDeadError):
            self._write(_Credit(dict(positions)))

    def limit(self, max_running: int) -> None:
        """Set how many requests run at once."""
        with contextlib.suppress(EngineDeadError):
            self._write(_Limit(max_running))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests; returns when the child has."""
        with contextlib.suppress(EngineDeadError):
            await self._call(lambda number: _Abort(number, list(request_ids)))

    async def stats(self) -> EngineStats:
        """Ask the child for its counts."""
        return await self._call(_Query)

    async def shutdown(self) -> None:
        """End the child."""
        if self._transport is not None:
            self._transport.abort()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _write(self, message: Struct) -> None:
        if self._transport is None or self._transport.is_closing():
            raise EngineDeadError("the simulated engine has ended")
        self._transport.write(_frame(message))

    async def _call(self, message: Callable[[int], Struct], seconds: float = ANSWER_SECONDS) -> EngineStats:
        number = next(self._numbers)
        self._write(message(number))
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError as error:
            raise EngineDeadError("the simulated engine does not answer") from error
        finally:
            del self._calls[number]

    def _take(self, frame: memoryview) -> None:
        message = _to_parent.decode(frame)
        if isinstance(message, _Step):
            self._deliver(message.outputs)
        elif (answer := self._calls.get(message.call)) is not None and not answer.done():
            answer.set_result(message.stats)

    def _closed(self) -> None:
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(EngineDeadError("the simulated engine has ended"))
        self._died()


class _Child:
    """The child's end: steps until the worker closes the socket."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._core: SimulatedCore | None = None
        self._ended = asyncio.Event()

    async def serve(self, sock: socket.socket) -> None:
        """Serve until the socket is closed."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._sicken)
        self._transport, _ = await loop.create_unix_connection(lambda: _Frames(self._take, self._ended.set), sock=sock)
        await self._ended.wait()

    def _sicken(self) -> None:
        if self._core is not None:
            self._core.sicken()

    def _take(self, frame: memoryview) -> None:
        if self._core is None:
            config = msgspec.msgpack.decode(frame, type=CoreConfig)
            self._core = SimulatedCore(config, lambda outputs: self._write(_Step(outputs)), self._ended.set)
            return
        message = _to_child.decode(frame)
        if isinstance(message, _Submit):
            self._core.submit(message.request)
        elif isinstance(message, _Credit):
            self._core.credit(message.positions)
        elif isinstance(message, _Limit):
            self._core.limit(message.max_running)
        else:
            if isinstance(message, _Abort):
                self._core.abort(message.request_ids)
            self._write(_Answer(message.call, self._core.stats()))

    def _write(self, message: Struct) -> None:
        if self._transport is not None:
            self._transport.write(_frame(message))


async def _serve(sock: socket.socket) -> None:
    await _Child().serve(sock)


def main() -> None:
    """Run the child."""
    die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
