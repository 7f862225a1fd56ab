"""Load clients, thin so that they measure the server and not themselves: one connection, one answer at a time.

They understand answers of the simulated engine only, whose tokens are words with a space before each.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec
from websockets.asyncio.client import connect

SUBPROTOCOL = "headrace.v1"
PROMPT = "Tell me of the wheel."
ACK_POSITIONS = 16
"""After how many tokens a WebSocket client acknowledges; our own clients do it as often."""


@dataclass(slots=True)
class SeenAnswer:
    """One answer as its client saw it. Times are `perf_counter` seconds of this process."""

    asked_at: float
    arrivals: list[float] = field(default_factory=list)
    """When each message that brought tokens was read."""
    tokens: list[int] = field(default_factory=list)
    """How many tokens each brought."""
    completion_tokens: int = 0
    """What the answer's usage says."""
    ended_at: float = 0.0
    """When all of it was read."""

    @property
    def ttft_seconds(self) -> float:
        return self.arrivals[0] - self.asked_at

    @property
    def is_complete(self) -> bool:
        """Whether every token that was counted by the server has arrived."""
        return sum(self.tokens) == self.completion_tokens > 0

    @property
    def shared_stamps(self) -> int:
        """How many messages have the time of the next one: they came in together before they were read."""
        return sum(before == after for before, after in zip(self.arrivals, self.arrivals[1:], strict=False))

    def gaps(self, begin: float, end: float) -> Iterator[float]:
        """Yields the time between neighbouring messages that lie in the window."""
        for before, after in zip(self.arrivals, self.arrivals[1:], strict=False):
            if begin <= before and after <= end:
                yield after - before

    def tokens_within(self, begin: float, end: float) -> int:
        """Returns how many tokens arrived in the window."""
        return sum(count for at, count in zip(self.arrivals, self.tokens, strict=True) if begin <= at < end)


class AnswerFailedError(Exception):
    """The server did not answer as it should; the message is what it said."""


class Writer(Protocol):
    """What is used of a connection's writing side."""

    def write(self, data: bytes) -> object:
        """Sends."""


class Connection(Protocol):
    """What is used of a WebSocket."""

    async def send(self, message: str, /) -> None:
        """Sends a text message."""

    async def recv(self, *, decode: Literal[False]) -> bytes:
        """Returns the next message."""


class StreamClient(Protocol):
    """An open connection."""

    async def ask(self, max_tokens: int, *, first: Callable[[], None] | None = None) -> SeenAnswer:
        """Asks for an answer and reads it to its end; calls `first` when its first token is there.

        Raises:
            AnswerFailedError: there was an error, or the stream broke off.
        """
        ...


class _Delta(msgspec.Struct):
    content: str | None = ""


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class SseClient:
    """Server-sent events over one keep-alive HTTP/1.1 connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: Writer,
        model: str,
        key: str,
        *,
        arrived_at: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`arrived_at` returns when what was read last has come in."""
        self._arrived_at = arrived_at
        self._reader = reader
        self._writer = writer
        self._model = model
        self._key = key

    async def ask(
        self, max_tokens: int, *, first: Callable[[], None] | None = None, temperature: float | None = None
    ) -> SeenAnswer:
        """See `StreamClient`."""
        request = self._request(max_tokens, temperature, stream=True, stream_options={"include_usage": True})
        answer = SeenAnswer(time.perf_counter())
        self._writer.write(request)
        await self._answer_head()
        async for event in self._events():
            self._take(event, answer, first)
        answer.ended_at = self._arrived_at()
        if not answer.is_complete:
            raise AnswerFailedError(f"{sum(answer.tokens)} of {answer.completion_tokens} tokens arrived")
        return answer

    async def ask_plain(self, max_tokens: int, *, temperature: float | None = None) -> float:
        """Asks for an answer in one piece; returns the seconds until all of it is there.

        Raises:
            AnswerFailedError: there was an error, or tokens are missing.
        """
        request = self._request(max_tokens, temperature)
        asked_at = time.perf_counter()
        self._writer.write(request)
        head = await self._answer_head()
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await self._reader.readexactly(length)
        seconds = time.perf_counter() - asked_at
        answer = _decode_chunk(body)
        if answer.usage is None or answer.usage.completion_tokens != max_tokens:
            raise AnswerFailedError(body.decode(errors="replace"))
        return seconds

    def _request(self, max_tokens: int, temperature: float | None, **fields: object) -> bytes:
        if temperature is not None:
            fields["temperature"] = temperature
        messages = [{"role": "user", "content": PROMPT}]
        body = json.dumps({"model": self._model, "messages": messages, "max_tokens": max_tokens, **fields}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self._key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def _answer_head(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise AnswerFailedError(head.decode(errors="replace"))
        return head

    def _take(self, event: bytes, answer: SeenAnswer, first: Callable[[], None] | None) -> None:
        if not event.startswith(b"data: {"):
            return  # a comment, or [DONE]
        now = self._arrived_at()
        chunk = _decode_chunk(event[6:])
        if chunk.error is not None:
            raise AnswerFailedError(str(chunk.error))
        if chunk.usage is not None:
            answer.completion_tokens = chunk.usage.completion_tokens
        words = sum((choice.delta.content or "").count(" ") for choice in chunk.choices)
        if words:
            answer.arrivals.append(now)
            answer.tokens.append(words)
            if first is not None and len(answer.arrivals) == 1:
                first()

    async def _events(self) -> AsyncIterator[bytes]:
        """Yields the events of a chunked body."""
        rest = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            rest += (await self._reader.readexactly(size + 2))[:-2]
            *events, rest = rest.split(b"\n\n")
            for event in events:
                yield event
        await self._reader.readexactly(2)


class _Frame(msgspec.Struct):
    type: str
    stream_id: str = ""
    seq: int = 0
    usage: _Usage | None = None


_decode_frame = msgspec.json.Decoder(_Frame).decode


class WebSocketClient:
    """`headrace.v1` over one connection."""

    def __init__(
        self, connection: Connection, model: str, *, arrived_at: Callable[[], float] = time.perf_counter
    ) -> None:
        """`arrived_at` returns when what was read last has come in."""
        self._arrived_at = arrived_at
        self._connection = connection
        self._model = model

    async def ask(self, max_tokens: int, *, first: Callable[[], None] | None = None) -> SeenAnswer:
        """See `StreamClient`."""
        request = {
            "type": "generate",
            "model": self._model,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": max_tokens,
        }
        text = json.dumps(request)
        answer, seq, acknowledged = SeenAnswer(time.perf_counter()), 0, 0
        await self._connection.send(text)
        while (frame := await self._next()).type != "end":
            if frame.type != "delta":
                continue
            answer.arrivals.append(self._arrived_at())
            answer.tokens.append(frame.seq - seq)
            seq = frame.seq
            if first is not None and len(answer.arrivals) == 1:
                first()
            if seq - acknowledged >= ACK_POSITIONS:
                acknowledged = seq
                await self._connection.send(f'{{"type":"ack","stream_id":"{frame.stream_id}","seq":{seq}}}')
        answer.ended_at = self._arrived_at()
        answer.completion_tokens = frame.usage.completion_tokens if frame.usage else 0
        if not answer.is_complete:
            raise AnswerFailedError(f"{seq} of {answer.completion_tokens} tokens arrived")
        return answer

    async def _next(self) -> _Frame:
        raw = await self._connection.recv(decode=False)
        frame = _decode_frame(raw)
        if frame.type == "error":
            raise AnswerFailedError(bytes(raw).decode())
        return frame


@asynccontextmanager
async def sse_client(host: str, port: int, *, model: str, key: str) -> AsyncIterator[SseClient]:
    """Connects for server-sent events."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield SseClient(reader, writer, model, key)
    finally:
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def websocket_client(host: str, port: int, *, model: str, key: str) -> AsyncIterator[WebSocketClient]:
    """Connects for `headrace.v1`."""
    async with connect(
        f"ws://{host}:{port}/v1/ws",
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
        additional_headers={"Authorization": f"Bearer {key}"},
        compression=None,
        ping_interval=None,
    ) as connection:
        yield WebSocketClient(connection, model)
