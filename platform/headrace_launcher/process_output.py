"""The lines of many processes on one terminal, each with the name of its process in front."""

import asyncio
import os
import sys
from typing import TextIO

_NAME_WIDTH = 10
_MAX_LINE = 16 * 1024
"""Bytes; a longer line is cut into several."""
_COLOURS = (36, 32, 35, 33, 34, 96, 92, 95)


class PrefixedOutput:
    """Writes lines to `target`; coloured by process kind where that is a terminal."""

    def __init__(self, target: TextIO | None = None) -> None:
        self._target = target or sys.stdout
        self._colours: dict[str, int] = {}
        self._is_terminal = self._target.isatty()

    def line(self, name: str, text: str) -> None:
        """Writes one line of the process `name`. A terminal that went away is no reason to stop."""
        prefix = f"{name:>{_NAME_WIDTH}} |"
        if self._is_terminal:
            kind = name.partition("-")[0]
            colour = self._colours.setdefault(kind, _COLOURS[len(self._colours) % len(_COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        try:
            self._target.write(f"{prefix} {text}\n")
            self._target.flush()
        except OSError:
            # Writing to nowhere keeps the processes and their shutdown going.
            self._target = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123

    async def copy(self, name: str, pipe: int) -> None:
        """Writes what arrives on the reading end of a pipe, line by line, until its end; closes it."""
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", 0)
        )
        try:
            await self._copy_lines(name, stream)
        finally:
            transport.close()

    async def _copy_lines(self, name: str, stream: asyncio.StreamReader) -> None:
        pending = b""
        while chunk := await stream.read(_MAX_LINE):
            *lines, pending = (pending + chunk).split(b"\n")
            while len(pending) >= _MAX_LINE:
                lines.append(pending[:_MAX_LINE])
                pending = pending[_MAX_LINE:]
            for line in lines:
                self.line(name, line.decode(errors="replace").rstrip())
        if pending:
            self.line(name, pending.decode(errors="replace").rstrip())
