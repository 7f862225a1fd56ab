"""The simulated engine's stepping in a child process: length-prefixed msgpack over a socket pair.

`python -m headrace_worker.simulated_process FD` is the child.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Self

import msgspec
from msgspec import Struct

from headrace_worker.config import child_environment
from headrace_worker.engine import EngineDeadError, EngineOutput, EngineRequest, EngineStats
from headrace_worker.process_guard import die_with_parent
from headrace_worker.simulated_core import CoreConfig, SimulatedCore

ANSWER_SECONDS = 10.0


class _Submit(Struct, array_like=True, tag="submit"):
    request: EngineRequest


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
_to_child = msgspec.msgpack.Decoder(_Submit | _Abort | _Query)
_to_parent = msgspec.msgpack.Decoder(_Step | _Answer)


def _frame(message: Struct) -> bytes:
    payload = _encoder.encode(message)
    return len(payload).to_bytes(4, "little") + payload


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))


class SimulatedProcess:
    """The worker's end."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        emit: Callable[[list[EngineOutput]], None],
        died: Callable[[], None],
    ) -> None:
        self._process = process
        self._reader, self._writer = streams
        self._emit = emit
        self._died = died
        self._calls: dict[int, asyncio.Future[EngineStats]] = {}
        self._numbers = itertools.count()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, config: CoreConfig, *, emit: Callable[[list[EngineOutput]], None], died: Callable[[], None]
    ) -> Self:
        """Start the child and hand it its configuration."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headrace_worker.simulated_process",
                str(theirs.fileno()),
                str(os.getpid()),
                pass_fds=[theirs.fileno()],
                env=child_environment(),
                start_new_session=True,
            )
        streams = await asyncio.open_unix_connection(sock=ours)
        self = cls(process, streams, emit, died)
        self._writer.write(_frame(config))
        await self.stats()
        return self

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def submit(self, request: EngineRequest) -> None:
        """Hand a request over."""
        self._writer.write(_frame(_Submit(request)))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests; returns when the child has."""
        with contextlib.suppress(EngineDeadError):
            await self._call(lambda number: _Abort(number, list(request_ids)))

    async def stats(self) -> EngineStats:
        """Ask the child for its counts."""
        return await self._call(_Query)

    async def shutdown(self) -> None:
        """End the child."""
        self._reading.cancel()
        self._writer.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    async def _call(self, message: Callable[[int], Struct]) -> EngineStats:
        number = next(self._numbers)
        if self._reading.done():
            raise EngineDeadError("the simulated engine has ended")
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self._writer.write(_frame(message(number)))
        try:
            return await asyncio.wait_for(answer, ANSWER_SECONDS)
        except TimeoutError as error:
            raise EngineDeadError("the simulated engine does not answer") from error
        finally:
            del self._calls[number]

    async def _read(self) -> None:
        try:
            while True:
                message = _to_parent.decode(await _read_frame(self._reader))
                if isinstance(message, _Step):
                    self._emit(message.outputs)
                elif (answer := self._calls.get(message.call)) is not None and not answer.done():
                    answer.set_result(message.stats)
        except (asyncio.IncompleteReadError, OSError):
            for answer in self._calls.values():
                if not answer.done():
                    answer.set_exception(EngineDeadError("the simulated engine has ended"))
            self._died()


async def _serve(sock: socket.socket) -> None:
    """The child: step until the worker closes the socket."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    config = msgspec.msgpack.decode(await _read_frame(reader), type=CoreConfig)
    core = SimulatedCore(config, lambda outputs: writer.write(_frame(_Step(outputs))))
    while True:
        message = _to_child.decode(await _read_frame(reader))
        if isinstance(message, _Submit):
            core.submit(message.request)
            continue
        if isinstance(message, _Abort):
            core.abort(message.request_ids)
        writer.write(_frame(_Answer(message.call, core.stats())))


def main() -> None:
    """Run the child."""
    die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
