"""A wire between a worker and Redis that a test can cut, mute or hold."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self


class RedisProxy:
    """Forwards connections of one unix socket to another."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._swallow_answers = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self.swallowed = asyncio.Event()
        """Set when an answer was lost."""
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def between(cls, folder: Path, redis_url: str) -> AsyncIterator[Self]:
        """Listen in `folder` and forward to `redis_url` (a unix socket)."""
        proxy = cls(redis_url.removeprefix("unix://"))
        path = folder / "proxy.sock"
        server = await asyncio.start_unix_server(proxy._serve, path)
        proxy.url = f"unix://{path}"
        try:
            yield proxy
        finally:
            server.close()
            proxy.cut()
            for task in list(proxy._tasks):
                task.cancel()
            await asyncio.gather(*proxy._tasks, return_exceptions=True)

    def lose_next_answer(self) -> None:
        """From now on requests reach Redis and answers do not come back; then the connection ends."""
        self.swallowed.clear()
        self._swallow_answers.set()

    def cut(self) -> None:
        """End all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    def close(self) -> None:
        """Be away: end all connections and take no new one."""
        self._open.clear()
        self.cut()

    def reopen(self) -> None:
        """Come back."""
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open.is_set():
            writer.transport.abort()
            return
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, up_writer}
        for source, sink, is_answer in ((reader, up_writer, False), (up_reader, writer, True)):
            task = asyncio.create_task(self._pump(source, sink, is_answer=is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if is_answer and self._swallow_answers.is_set():
                    self._swallow_answers.clear()
                    self.swallowed.set()
                    sink.transport.abort()
                    break
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)
