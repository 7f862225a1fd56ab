"""The supervisor's ear: other processes of this machine ask it for more or fewer workers of a deployment."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace_launcher.errors import LaunchError
from headrace_launcher.supervisor import ProcessKind, Supervisor
from headrace_wire.supervisor_control import (
    ANSWER_SECONDS,
    DEPLOYMENT,
    MOST_BYTES,
    MOST_WORKERS,
    SOCKET_NAME,
    WorkersAsked,
    WorkersTold,
    encode,
    listening_socket,
)


class Control:
    """Answers on the state directory's socket. Each deployment's workers are a kind, known once asked for."""

    def __init__(self, supervisor: Supervisor, folder: Path, worker_kind: Callable[[str], ProcessKind]) -> None:
        self._supervisor = supervisor
        self._folder = folder
        self._worker_kind = worker_kind
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to answer.

        Raises:
            LaunchError: The socket cannot be made.
        """
        try:
            listener = listening_socket(self._folder)
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=MOST_BYTES)
        except OSError as error:
            raise LaunchError(f"{self._folder / SOCKET_NAME} cannot be made: {error.strerror}.") from error

    async def stop(self) -> None:
        """Answers nobody any more; the socket is gone."""
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        with suppress(FileNotFoundError):
            (self._folder / SOCKET_NAME).unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._connections.add(task)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                writer.write(encode(await self._answer(await reader.readline())))
                await writer.drain()
        except (TimeoutError, OSError, ValueError):  # who asks so is told nothing
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> WorkersTold:
        try:
            asked = msgspec.json.decode(line, type=WorkersAsked)
        except msgspec.DecodeError as error:
            return WorkersTold(error=f"Not understood: {error}.")
        if not re.match(DEPLOYMENT, asked.deployment):
            return WorkersTold(error="No deployment has such a name.")
        if asked.count is not None and not 0 <= asked.count <= MOST_WORKERS:
            return WorkersTold(error=f"From 0 to {MOST_WORKERS} workers.")
        kind = self._worker_kind(asked.deployment)
        if asked.count is not None:
            self._supervisor.know(kind)
            try:
                await self._supervisor.scale(kind.name, asked.count, victims=asked.victims, wait=False)
            except LaunchError as error:
                return WorkersTold(wanted=self._supervisor.wanted(kind.name), error=str(error))
        return WorkersTold(self._supervisor.wanted(kind.name), self._supervisor.serving(kind.name))
