"""The ASGI applications that the server's tests run behind it. One module, loaded in the server's process.

Each call may carry `?name=`; under that name it notes what happens to it, and a test asks for those notes over HTTP, so
no test has to guess by sleeping.
"""

import asyncio
import gc
import json
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from headrace.server.flow_control import EXTENSION, RECEIVED_AT, TransportControl
from headrace.server.http_exchange import HttpExchange
from headrace.server.state import ServerState, server_state
from tests.server.journal import JOURNALS

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BLOCK = 4096


class Call:
    """One call of the application, with what its handlers need."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self._send = scope, receive, send
        self.query = dict(parse_qsl(scope["query_string"].decode()))
        self.journal = JOURNALS[self.query.get("name", "")]
        self.control: TransportControl = scope["extensions"][EXTENSION]
        self.is_websocket = scope["type"] == "websocket"
        state = server_state(scope)
        assert state is not None
        self.state: ServerState = state
        self._looking: asyncio.TimerHandle
        self._noting: asyncio.Task[None] | None = None

    def number(self, name: str, default: float) -> float:
        return float(self.query.get(name, default))

    async def start(self, *headers: tuple[bytes, bytes], status: int = 200) -> None:
        if self.is_websocket:
            await self.receive()
            await self._send({"type": "websocket.accept"})
        else:
            await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def part(self, data: bytes) -> None:
        """Sends a part of the stream and notes when the server holds it back.

        It is looked at over several turns of the loop: what waits since the whole process stood still goes on in one.
        """
        self._look(5)
        try:
            if self.is_websocket:
                await self._send({"type": "websocket.send", "bytes": data})
            else:
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except OSError:
            await self.journal.note("gone")
            raise
        finally:
            self._looking.cancel()
            self.journal.accepted_bytes = self.control.accepted_bytes
        self.journal.sent_bytes += len(data)

    def _look(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            self._looking = loop.call_later(0.02, self._look, turns - 1)
        else:
            self._noting = loop.create_task(self.journal.note("paused"))

    async def finish(self, data: bytes = b"", **close: Any) -> None:
        if self.is_websocket:
            await self._send({"type": "websocket.close", **close})
        else:
            await self._send({"type": "http.response.body", "body": data})

    async def answer(self, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        await self.start((b"content-type", b"application/json"), (b"content-length", b"%d" % len(data)), status=status)
        await self.finish(data)

    async def send_raw(self, message: MutableMapping[str, Any]) -> None:
        await self._send(message)


def block(number: int) -> bytes:
    """Returns the `number`-th block of every test stream."""
    return (b"%08d" % number) * (BLOCK // 8)


async def hello(call: Call) -> None:
    await call.answer({"hello": call.scope["path"], "root_path": call.scope["root_path"]})


async def counts(call: Call) -> None:
    state = call.state
    await call.answer(
        {
            "connections": state.connection_count,
            "http_requests": state.http_requests,
            "websockets": state.websockets,
            "refused_total": state.refused_total,
            "stalled_total": state.stalled_total,
            "ping_timeout_total": state.ping_timeout_total,
            "buffered_bytes": state.buffered_bytes(),
            "buffered_lately": state.buffered_lately,
            "draining": state.draining.is_set(),
        }
    )


async def journal(call: Call) -> None:
    """`?of=NAME[&event=E]`: the notes of a call, once it has noted E."""
    wanted = JOURNALS[call.query["of"]]
    if "event" in call.query:
        await wanted.wait_for(call.query["event"])
    await call.answer(
        {"sent_bytes": wanted.sent_bytes, "accepted_bytes": wanted.accepted_bytes, "events": wanted.events}
    )


async def body_length(call: Call) -> None:
    length, more = 0, True
    while more:
        message = await call.receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    await call.answer({"length": length})


async def blocks(call: Call) -> None:
    """`?count=N`: N blocks as fast as the server takes them, `&watch=1`: and a task that waits in receive()."""
    await call.start((b"content-type", b"text/event-stream"))
    watcher = asyncio.create_task(_watch(call)) if "watch" in call.query else None
    if "stall" in call.query:
        call.control.stall_timeout_seconds = call.number("stall", 0)
    try:
        for number in range(int(call.number("count", 1))):
            await call.part(block(number))
        await call.journal.note("sent")
        await call.finish()
    finally:
        await call.journal.note("ended")
        if watcher is not None:
            watcher.cancel()


async def _watch(call: Call) -> None:
    while True:
        message = await call.receive()
        await call.journal.note(message["type"])
        if message["type"].endswith("disconnect"):
            await call.journal.note(f"disconnect {message.get('code')} {message.get('reason')}")
            return


async def credit(call: Call) -> None:
    """Sends one block at a time and only goes on when the client's connection took it."""
    await call.start((b"content-type", b"text/event-stream"))
    for number in range(int(call.number("count", 1))):
        await call.part(block(number))
        await call.control.wait_accepted(call.control.written_bytes)
    call.journal.accepted_bytes = call.control.accepted_bytes
    await call.journal.note("sent")
    await call.finish()


async def lines(call: Call) -> None:
    """`?count=N`: N short events, some of them in one tick."""
    await call.start((b"content-type", b"text/event-stream"))
    for number in range(int(call.number("count", 1))):
        await call.part(b"data: %d\n\n" % number)
        if number % 3 == 0:
            await asyncio.sleep(0)
    await call.finish(b"data: [DONE]\n\n")


async def live(call: Call) -> None:
    """`?count=N`: N blocks of text from synchronous code; what is not taken so is sent in the ordinary way."""
    await call.start((b"content-type", b"text/event-stream"))
    assert call.is_websocket or not call.control.send_now(b"before the body has begun")
    await call.part(block(0))
    for number in range(1, int(call.number("count", 1))):
        if call.control.send_now(block(number)):
            call.journal.sent_bytes += BLOCK
        else:
            await call.journal.note("refused")
            await call.part(block(number))
        if number % 5 == 0:
            await asyncio.sleep(0)
    await call.finish()
    assert not call.control.send_now(b"behind its end")
    await call.journal.note("sent")


async def left(call: Call) -> None:
    """Streams a part, waits until the client has left, and tries to send more from synchronous code."""
    await call.start((b"content-type", b"text/event-stream"))
    await call.part(b"begun")
    await call.journal.note("begun")
    await _watch(call)
    await call.journal.note(f"sent: {call.control.send_now(b'more')}")


async def nodelay(call: Call) -> None:
    """Whether the connection sends small packets at once."""
    connection = call.control._transport
    await call.answer({"nodelay": bool(connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))})


async def exchanges(call: Call) -> None:
    """`?collector=off|on`: switches the garbage collector, and tells how many exchanges are in memory."""
    gc.collect()
    count = sum(isinstance(one, HttpExchange) for one in gc.get_objects())
    (gc.disable if call.query["collector"] == "off" else gc.enable)()
    await call.answer({"count": count})


async def remaining(call: Call) -> None:
    """How many exchanges are in memory, with what nobody holds and no collector has looked at."""
    await call.answer({"count": sum(isinstance(one, HttpExchange) for one in gc.get_objects())})


async def large(call: Call) -> None:
    """`?bytes=N`: one plain answer of N bytes, with its length."""
    size = int(call.number("bytes", 1))
    await call.start((b"content-length", b"%d" % size))
    await call.finish(b"x" * size)


async def heads(call: Call) -> None:
    """Answers with headers of all kinds; `?server` names itself."""
    own = [(b"server", b"mine")] if "server" in call.query else []
    await call.start(
        *((b"content-length", b"2"), (b"x-twice", b"1"), (b"X-Lines", b"a\r\nb\nc"), (b"etag", b'"e"')),
        *((b"x-empty", b""), (b"x-twice", b"2"), *own),
    )
    await call.finish(b"ok")


async def wrong(call: Call) -> None:
    """Breaks ASGI in the way that `?how=` names."""
    match call.query["how"]:
        case "body-first":
            await call.finish(b"x")
        case "two-starts":
            await call.start()
            await call.start()
        case "no-name":
            await call.start((b"no name", b"1"))
        case "no-bytes":
            await call.send_raw({"type": "http.response.start", "status": 200, "headers": [(b"x", "1")]})


async def hold(call: Call) -> None:
    """Streams a first part and then waits until the test says `release` or the server says `closing`."""
    await call.start((b"content-type", b"text/event-stream"))
    with call.control.hold():
        await call.part(b"data: begun\n\n")
        await call.journal.note("begun")
        if "ignore" in call.query:
            await asyncio.Event().wait()
        released = asyncio.create_task(call.journal.wait_for("release"))
        closing = asyncio.create_task(call.state.closing.wait())
        await asyncio.wait((released, closing), return_when=asyncio.FIRST_COMPLETED)
        await call.part(b"data: released\n\n" if released.done() else b"data: closing\n\n")
        released.cancel()
        closing.cancel()
    if call.is_websocket:
        await _watch(call)
    else:
        await call.finish()


async def release(call: Call) -> None:
    await JOURNALS[call.query["of"]].note("release")
    await call.answer({})


async def times(call: Call) -> None:
    """Tells when a request, or a message, had come in and when the application had it; it is busy for `?busy=` s then.

    With `first` the busy time comes behind the head of the answer. What the kernel has of the answer is noted at once.
    """
    if call.is_websocket:
        await call.start()
        await call.journal.wait_for("release")
        had_at = time.perf_counter()
        message = await call.receive()
        await call.send_raw({"type": "websocket.send", "text": json.dumps([message[RECEIVED_AT], had_at])})
        return
    had_at = time.perf_counter()
    if "first" in call.query:
        await call.start()
        await call.part(b"begun")
        await asyncio.sleep(0.05)  # until that has been flushed
    time.sleep(call.number("busy", 0))  # noqa: ASYNC251  it is to keep everybody waiting
    if "first" in call.query:
        await call.finish()
    else:
        await call.answer([call.control.arrived_at, had_at])
        call.journal.accepted_bytes = call.control.accepted_bytes


async def abort(call: Call) -> None:
    await call.start()
    await call.part(b"begun")
    await call.journal.note("begun")
    call.control.abort("test")
    await _watch(call)


async def crash(call: Call) -> None:
    if "late" in call.query:
        await call.start()
        await call.part(b"begun")
    raise LookupError("The test application fails on purpose.")


async def silent(call: Call) -> None:
    """Returns without any answer."""
    if "late" in call.query:
        await call.start()
        await call.part(b"begun")


async def stubborn(call: Call) -> None:
    """Ignores that its client left, until it is cancelled."""
    await call.start()
    await call.part(b"begun")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await call.journal.note("cancelled")
        raise


async def echo(call: Call) -> None:
    """WebSocket: returns each message in its kind."""
    await call.start()
    while (message := await call.receive())["type"] == "websocket.receive":
        await call.send_raw({**message, "type": "websocket.send"})
    if message["type"] == "websocket.disconnect":  # the noise test comes by with plain requests, too
        await call.journal.note(f"disconnect {message['code']} {message['reason']}")


async def deaf(call: Call) -> None:
    """WebSocket: accepts and reads nothing until the test says `release`; then counts what came."""
    await call.start()
    await call.journal.note("open")
    await call.journal.wait_for("release")
    for _ in range(int(call.number("count", 1))):
        await call.receive()
    await call.journal.note("read")
    await call.finish(code=1000)


async def close(call: Call) -> None:
    """WebSocket: `?code=&reason=`."""
    await call.start()
    try:
        await call.finish(code=int(call.query["code"]), reason=call.query.get("reason", ""))
    except ValueError:
        await call.journal.note("refused")
        await call.finish(code=4000, reason="refused")
    await _watch(call)


async def accept(call: Call) -> None:
    """WebSocket: accepts with a subprotocol and a header."""
    await call.receive()
    headers = [(b"x-headrace", b"yes")]
    await call.send_raw({"type": "websocket.accept", "subprotocol": call.query.get("protocol"), "headers": headers})
    await call.finish(code=1000)


async def undecided(call: Call) -> None:
    """WebSocket: neither accepts nor refuses."""
    await _watch(call)


async def reject(call: Call) -> None:
    await call.receive()
    await call.finish(code=4401)


ROUTES: dict[str, Callable[[Call], Awaitable[None]]] = {
    handler.__name__: handler
    for handler in (
        abort, accept, blocks, body_length, close, counts, crash, credit, deaf, echo, exchanges, heads, hello, hold,
        journal, large, left, lines, live, nodelay, reject, release, remaining, silent, stubborn, times,
        undecided, wrong,
    )
}  # fmt: skip


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of nearly all tests; it has no lifespan."""
    if scope["type"] == "lifespan":
        raise ValueError("No lifespan here.")
    call = Call(scope, receive, send)
    await ROUTES.get(scope["path"].rpartition("/")[2], hello)(call)
