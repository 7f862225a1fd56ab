"""Clients that read nothing and have a stream each, so large that its pump waits for a transport that is full.

That it waits needs no look into the gateway: the log has more text than all buffers of the connection take
(`BUFFER_BYTES`), and it has stopped growing.
"""

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.live_stack import LiveStack
from tests.support.slow_clients import HEAR_SECONDS, MODEL, ask, deaf_socket
from tests.support.stream_probe import StreamProbe

BUFFER_BYTES = 64 * 1024
"""More than one connection takes that nobody reads: 16 KiB at the server, twice 16 in its kernel, 2 at the client."""
WINDOW = 256
MEANINGLESS = {"type": "dance"}
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class FullTransport:
    """A connection that is not read, and the stream that fills it."""

    raw: socket.socket
    stream_id: str


def full_completions(stack: LiveStack, probe: StreamProbe, count: int) -> list[FullTransport]:
    """Return so many streamed chat completions."""
    fields = {"model": MODEL, "messages": ask("Say something."), "stream": True}
    body = json.dumps({**fields, "max_tokens": 4000, "ignore_eos": True, "temperature": 0})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}"
    transports = []
    for _ in range(count):
        raw, answer = _requested(stack, head, body)
        (named,) = [line for line in answer.splitlines() if line.lower().startswith(b"x-headrace-stream-id:")]
        transports.append(FullTransport(raw, named.split()[1].decode()))
    wait_until_full(probe, [transport.stream_id for transport in transports])
    return transports


def full_events(stack: LiveStack, probe: StreamProbe, count: int) -> list[FullTransport]:
    """Return so many event streams; who started their streams is gone."""
    before = probe.stream_ids()
    starter = _websocket(stack)
    for _ in range(count):
        _say(starter, _generate(WINDOW))
    stream_ids = probe.wait_for_new_streams(before, count)
    transports = [
        FullTransport(_requested(stack, f"GET /v1/streams/{stream_id}/events HTTP/1.1")[0], stream_id)
        for stream_id in stream_ids
    ]
    starter.close()
    wait_until_full(probe, stream_ids)
    return transports


def full_websockets(stack: LiveStack, probe: StreamProbe, count: int) -> list[FullTransport]:
    """Return so many connections of `headrace.v1`."""
    transports = []
    for _ in range(count):
        before, raw = probe.stream_ids(), _websocket(stack)
        _say(raw, _generate(WINDOW))
        transports.append(FullTransport(raw, probe.wait_for_new_stream(before)))
    wait_until_full(probe, [transport.stream_id for transport in transports])
    for transport in transports:
        _say(transport.raw, MEANINGLESS)  # its answer waits too
    return transports


def wait_until_full(probe: StreamProbe, stream_ids: Sequence[str]) -> None:
    """Wait until these streams stand still with more than the buffers take; each has a connection of its own."""
    for stream_id in stream_ids:
        probe.wait_for_tokens(stream_id, WINDOW, seconds=0)
    probe.wait_until_all_still(stream_ids)
    for stream_id in stream_ids:
        assert len(probe.text(stream_id).encode()) > 2 * BUFFER_BYTES


# ---- ways to leave


def close(raw: socket.socket) -> None:
    """Close, as the end of a process does: the kernel resets the connection, since there is unread data."""
    raw.close()


def reset(raw: socket.socket) -> None:
    """Reset."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def finish(raw: socket.socket) -> None:
    """Send the end of the connection, and stay to take nothing."""
    raw.shutdown(socket.SHUT_WR)


def say_goodbye(raw: socket.socket) -> None:
    """Send a WebSocket's close frame (1000), and stay to take nothing."""
    raw.sendall(_frame(8, struct.pack("!H", 1000)))


# ---- the wire


def _generate(window: int) -> dict[str, Any]:
    request = {"model": MODEL, "messages": ask("Say something."), "max_tokens": 4000, "window": window}
    return {"type": "generate", "ignore_eos": True, "temperature": 0, **request}


def _requested(stack: LiveStack, head: str, body: str = "") -> tuple[socket.socket, bytes]:
    """Send a request and read the head of its answer, and not much more."""
    raw = deaf_socket(stack)
    raw.settimeout(HEAR_SECONDS)
    raw.sendall(f"{head}\r\nHost: x\r\nAuthorization: Bearer {stack.api_key}\r\n\r\n{body}".encode())
    answer = b""
    while _HEAD_END not in answer:
        chunk = raw.recv(256)
        assert chunk, f"the connection ended after {answer!r}"
        answer += chunk
    return raw, answer


def _websocket(stack: LiveStack) -> socket.socket:
    raw, answer = _requested(
        stack,
        "GET /v1/ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Protocol: headrace.v1",
    )
    assert answer.startswith(b"HTTP/1.1 101 ")
    return raw


def _say(raw: socket.socket, frame: dict[str, Any]) -> None:
    raw.sendall(_frame(1, json.dumps(frame).encode()))


def _frame(opcode: int, payload: bytes) -> bytes:
    """Return a client's frame; its mask of zeros changes nothing."""
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else struct.pack("!BH", 0x80 | 126, len(payload))
    return bytes([0x80 | opcode]) + size + bytes(4) + payload
