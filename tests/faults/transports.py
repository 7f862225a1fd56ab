"""The connections of clients, thin: what comes is handed to the reader at once. A broken one raises."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from headrace_wire.ids import new_incarnation
from tests.faults.readers import Hop, PassedOverError, Reader, Transport

HOST = "127.0.0.1"
CONNECT_SECONDS = 10.0
SUBPROTOCOL = "headrace.v1"
ACK_TOKENS = 16

BROKEN = (PassedOverError, OSError, EOFError, WebSocketException)
"""What a connection may end with, besides its own end."""


class _Error(Struct):
    code: str
    message: str = ""


class _Usage(Struct):
    completion_tokens: int


class _Frame(Struct):
    type: str
    stream_id: str | None = None
    seq: int = 0
    after: int = 0
    text: str = ""
    attempt: int = 0
    usage: _Usage | None = None
    error: _Error | None = None


class _Text(Struct):
    content: str = ""


class _Choice(Struct):
    delta: _Text
    finish_reason: str | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


_decode_frame = msgspec.json.Decoder(_Frame).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def _take(reader: Reader, hop: Hop, raw: str | bytes) -> None:
    frame = _decode_frame(raw)
    if reader.stream_id is None and frame.stream_id is not None:
        reader.name(hop, frame.stream_id)
    if frame.type == "delta":
        reader.take(hop, frame.text, seq=frame.seq, after=frame.after)
    elif frame.type == "started":
        reader.attempts = max(reader.attempts, frame.attempt)
    elif frame.type == "end":
        reader.finish(frame.usage.completion_tokens if frame.usage else None)
    elif frame.type == "error" and frame.error is not None:
        reader.fail(frame.error.code, frame.error.message)


def _request(reader: Reader) -> dict[str, Any]:
    return {
        "model": reader.model,
        "messages": [{"role": "user", "content": reader.prompt}],
        "max_tokens": reader.max_tokens,
    }


def _go_on_by_position(reader: Reader) -> None:
    if not reader.seq and reader.text:  # it came over a transport without positions
        reader.begin_again()


# ---- WebSocket


async def _websocket(reader: Reader, hop: Hop) -> None:
    async with connect(
        f"ws://{HOST}:{reader.ports[hop.gateway]}/v1/ws",
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
        additional_headers={"Authorization": f"Bearer {reader.api_key}"},
        compression=None,
        ping_interval=None,
        proxy=None,
        open_timeout=CONNECT_SECONDS,
        close_timeout=0.2,
    ) as connection:
        try:
            await _converse(reader, hop, connection)
        except BaseException:
            connection.transport.abort()
            raise


async def _converse(reader: Reader, hop: Hop, connection: ClientConnection) -> None:
    if reader.stream_id is None:
        reader.starts += 1
        await connection.send(json.dumps({"type": "generate", **_request(reader)}))
    else:
        _go_on_by_position(reader)
        await connection.send(json.dumps({"type": "resume", "stream_id": reader.stream_id, "after": reader.seq}))
    acknowledged = reader.seq
    while not reader.is_over:
        _take(reader, hop, await connection.recv(decode=False))
        if reader.seq - acknowledged >= ACK_TOKENS:
            acknowledged = reader.seq
            await connection.send(json.dumps({"type": "ack", "stream_id": reader.stream_id, "seq": acknowledged}))


# ---- HTTP


async def _events(reader: Reader, hop: Hop) -> None:
    if reader.stream_id is None:
        raise PassedOverError("nothing to follow yet")
    _go_on_by_position(reader)
    head = f"GET /v1/streams/{reader.stream_id}/events?after={reader.seq} HTTP/1.1\r\n"
    async with _exchange(reader, hop, head, b"") as (_, events):
        async for event in events:
            if event.startswith(b"data: {"):  # without an id: the request itself failed
                _take_chunk(reader, hop, event[6:])
            elif data := event.partition(b"\ndata: ")[2] if event.startswith(b"id: ") else b"":
                _take(reader, hop, data)


async def _chat(reader: Reader, hop: Hop) -> None:
    reader.idempotency_key = reader.idempotency_key or new_incarnation("key")
    reader.starts += 1
    body = json.dumps({**_request(reader), "stream": True}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {reader.idempotency_key}\r\n"
    )
    async with _exchange(reader, hop, head, body) as (headers, events):
        reader.name(hop, headers["x-headrace-stream-id"])
        reader.begin_again()
        finish_reason: str | None = None
        async for event in events:
            if event == b"data: [DONE]":
                if finish_reason is None:
                    reader.oddities.append("[DONE] without a finish reason")
                reader.finish(None)
            elif event.startswith(b"data: {"):
                finish_reason = _take_chunk(reader, hop, event[6:]) or finish_reason


def _take_chunk(reader: Reader, hop: Hop, raw: bytes) -> str | None:
    chunk = _decode_chunk(raw)
    if chunk.error is not None:
        reader.fail(chunk.error.code, chunk.error.message)
    for choice in chunk.choices:
        if choice.delta.content:
            reader.take(hop, choice.delta.content, seq=None)
    return next((choice.finish_reason for choice in chunk.choices), None)


@asynccontextmanager
async def _exchange(
    reader: Reader, hop: Hop, head: str, body: bytes
) -> AsyncIterator[tuple[dict[str, str], AsyncIterator[bytes]]]:
    """Sends a request; gives the headers and the events of its answer."""
    async with asyncio.timeout(CONNECT_SECONDS):
        incoming, outgoing = await asyncio.open_connection(HOST, reader.ports[hop.gateway])
    try:
        fields = f"Host: faults\r\nAuthorization: Bearer {reader.api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
        outgoing.write((head + fields).encode() + body)
        status, *lines = (await incoming.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if " 200 " not in status:
            refusal = await incoming.readexactly(int(headers.get("content-length", 0)))
            error = msgspec.json.decode(refusal, type=_Chunk).error if refusal else None
            reader.fail(error.code if error else status, error.message if error else status)
            raise PassedOverError(status)
        yield headers, _chunks(incoming)
    finally:
        outgoing.transport.abort()


async def _chunks(incoming: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yields the events of a chunked body."""
    rest = b""
    while size := int(await incoming.readuntil(b"\r\n"), 16):
        rest += (await incoming.readexactly(size + 2))[:-2]
        *events, rest = rest.split(b"\n\n")
        for event in events:
            yield event


TRANSPORTS: dict[Transport, Callable[[Reader, Hop], Awaitable[None]]] = {
    Transport.WEBSOCKET: _websocket,
    Transport.EVENTS: _events,
    Transport.CHAT: _chat,
}
