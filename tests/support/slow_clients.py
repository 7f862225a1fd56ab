"""Clients that read when a test says so, and not a byte before: WebSocket with acknowledgements, and plain SSE."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.messages import Delta
from tests.support.live_stack import LiveStack
from tests.support.stream_probe import StreamProbe

MODEL = "model"
"""Every stack here serves one deployment, and calls it so."""
HEAR_SECONDS = 60.0

Stalled = tuple[ClientConnection, str]
"""A connection that is not read, and its stream's id."""


def opened(stack: LiveStack, **options: Any) -> Any:
    """Return a connection to `/v1/ws` that is not open yet: await it, or enter it.

    It pings nobody: it would take a pong that it does not read for a lost connection, after some 40 seconds.
    """
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    options = {"open_timeout": HEAR_SECONDS, "ping_interval": None, **options}
    return connect(stack.ws_url, subprotocols=["headrace.v1"], additional_headers=headers, **options)  # type: ignore[list-item]


def ask(prompt: str) -> list[dict[str, str]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": prompt}]


def deaf_socket(stack: LiveStack) -> socket.socket:
    """Return a connected socket with the smallest receive buffer that there is."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    raw.connect(("127.0.0.1", int(stack.base_url.rsplit(":", 1)[1])))
    return raw


async def ask_on(connection: ClientConnection, tokens: int, *, prompt: str = "Say something.", **fields: Any) -> None:
    """Ask for a greedy stream."""
    frame = {"type": "generate", "model": MODEL, "messages": ask(prompt), "max_tokens": tokens, "ignore_eos": True}
    await connection.send(json.dumps({**frame, "temperature": 0, **fields}))


async def generate(connection: ClientConnection, tokens: int, **options: Any) -> str:
    """Start a stream as `ask_on` does; return its id."""
    await ask_on(connection, tokens, **options)
    return str((await hear(connection))["stream_id"])


async def hear(connection: ClientConnection) -> dict[str, Any]:
    """Return the next frame."""
    frame: dict[str, Any] = json.loads(await asyncio.wait_for(connection.recv(), HEAR_SECONDS))
    return frame


async def acknowledge(connection: ClientConnection, stream_id: str, seq: int) -> None:
    """Say that everything up to `seq` was handled."""
    await connection.send(json.dumps({"type": "ack", "stream_id": stream_id, "seq": seq}))


async def read_on(connection: ClientConnection, stream_id: str, *, until: int | None = None) -> tuple[str, int]:
    """Read to the end, or to a position, acknowledging each frame; return the text and the last position."""
    text, seq = "", 0
    while until is None or seq < until:
        frame = await hear(connection)
        if frame["type"] == "delta":
            assert frame["seq"] > seq
            text, seq = text + frame["text"], frame["seq"]
            await acknowledge(connection, stream_id, seq)
        elif frame["type"] == "end":
            break
        else:
            assert frame["type"] != "error", frame
    return text, seq


async def stalled(stack: LiveStack, tokens: int = 4000, **fields: Any) -> Stalled:
    """Open a connection whose client takes one frame and then nothing."""
    connection = await opened(stack, max_queue=1)
    return connection, await generate(connection, tokens, **fields)


async def drop(connection: ClientConnection) -> None:
    """End a connection without a close handshake, which a client that does not read would wait for in vain."""
    connection.transport.abort()
    await connection.wait_closed()


async def give_up(stack: LiveStack, *streams: Stalled) -> None:
    """Cancel streams and drop their connections."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {stack.api_key}"}) as http:
        for connection, stream_id in streams:
            (await http.delete(f"{stack.base_url}/v1/streams/{stream_id}")).raise_for_status()
            await drop(connection)


async def begin_and_leave(stack: LiveStack, probe: StreamProbe, body: dict[str, Any]) -> str:
    """Ask for a chat completion, and leave once there is some of it, streamed or not; return the stream's id."""
    before = probe.stream_ids()
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    async with httpx.AsyncClient(base_url=stack.base_url, headers=headers, timeout=HEAR_SECONDS) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        stream_id = await asyncio.to_thread(probe.wait_for_new_stream, before)
        await asyncio.to_thread(probe.wait_for_entry, stream_id, lambda entry: isinstance(entry, Delta))
        await cancel_and_wait(asking)
    return stream_id


class SseReader:
    """One streamed chat completion on a socket of its own."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw

    def read_to_end(self) -> str:
        """Return the answer's text; it must end with `[DONE]`."""
        received = bytearray()
        while b"data: [DONE]" not in received:
            chunk = self._raw.recv(65536)
            assert chunk, f"the connection ended after {bytes(received[-200:])!r}"
            received += chunk
        events = [event for event in _dechunked(bytes(received)).split(b"\n\n") if event.startswith(b"data: {")]
        chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
        return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@contextmanager
def sse_asked(stack: LiveStack, tokens: int, *, prompt: str = "Say something.") -> Iterator[SseReader]:
    """Ask for a stream over a connection with the smallest receive buffer there is; nothing is read of it yet."""
    request = {"model": MODEL, "messages": ask(prompt), "max_tokens": tokens, "stream": True, "ignore_eos": True}
    body = json.dumps({**request, "temperature": 0})
    with deaf_socket(stack) as raw:
        raw.settimeout(HEAR_SECONDS)
        raw.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.api_key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        yield SseReader(raw)


def _dechunked(answer: bytes) -> bytes:
    """Return the body of a chunked answer, as much of it as is there."""
    body, rest = b"", answer.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return body
