"""`/v1/streams/{id}`: look at a stream, follow its events (SSE, resumable), stop it.

Event ids are positions: the `Last-Event-ID` of a reconnecting EventSource, or `?after=`, is the last position that the
client has, and the first event is the one after it. Each event is JSON with `type`, as in the WebSocket protocol.
"""

import random
from functools import partial
from urllib.parse import parse_qs

import msgspec

from apps.api.answer import Answer
from apps.api.http import Exchange
from apps.api.live_text import live_text, next_entries
from apps.api.openai_format import usage_object
from apps.api.protocol import FrameWriter, final_frames
from apps.api.serving import EVENT_STREAM, SSE_HEADERS, until_disconnect
from apps.api.stream_tickets import reader_of
from apps.streams.config_view import Caller
from apps.streams.follower import Follower
from apps.streams.gateway import Gateway
from apps.streams.latency_reading import LatencyReading, Part, series_of
from apps.streams.services import stream_attach, stream_cancel, stream_find, stream_leave
from apps.streams.transport import client_timed_out, limit_stall
from headrace_wire.api_key import ApiKeyScope
from headrace_wire.errors import DrainingError, InvalidRequestError, StreamGoneError, StreamNotFoundError
from headrace_wire.ids import is_stream_id
from headrace_wire.messages import AnyLogEntry, Ended, Started
from headrace_wire.request_queue import CancelOutcome

RETRY_MS = (500, 2500)
"""Range of the reconnect delay that a client is told, so that a restart does not bring all back at once."""


async def stream_retrieve(exchange: Exchange, gateway: Gateway, stream_id: str) -> None:
    """Describe a stream: state, position, and once it has ended its usage and timings.

    Raises:
        HeadraceError: not allowed, unknown, or expired.
    """
    caller = _caller(exchange, gateway)
    found, record = await stream_find(gateway=gateway, caller=caller, stream_id=stream_id)
    tail = await gateway.token_log.tail(record.rides or found)
    if tail is None:
        raise StreamGoneError("The stream's log has expired.")
    body: dict[str, object] = {
        "id": stream_id,
        "object": "stream",
        "state": record.state.value,
        "reason": record.reason or None,
        "model": record.deployment,
        "seq": tail.seq - isinstance(tail, Ended),
        "credit": record.credit or None,
    }
    if isinstance(tail, Ended):
        body |= {
            "finish_reason": tail.finish_reason.value,
            "usage": usage_object(tail.usage),
            "timings": {
                "queue_ms": round(tail.timings.queue_time * 1000, 3),
                "prefill_ms": round(tail.timings.prefill_time * 1000, 3),
                "decode_ms": round(tail.timings.decode_time * 1000, 3),
            },
        }
    await exchange.answer_json(200, msgspec.json.encode(body))


async def stream_stop(exchange: Exchange, gateway: Gateway, stream_id: str) -> None:
    """Cancel a stream; again is harmless.

    Raises:
        HeadraceError: not allowed, or unknown.
    """
    caller = _caller(exchange, gateway)
    outcome = await stream_cancel(
        gateway=gateway, tenant_id=caller.tenant.id, stream_id=_checked(stream_id), reason="client"
    )
    state = "cancelling" if outcome is CancelOutcome.RUNNING else "ended"
    await exchange.answer_json(200, msgspec.json.encode({"id": stream_id, "object": "stream", "state": state}))


async def stream_follow(exchange: Exchange, gateway: Gateway, stream_id: str) -> None:
    """Give the events after the client's cursor, then go on live until the stream ends.

    Raises:
        HeadraceError: not allowed, unknown, expired, or a cursor that is no position.
    """
    caller = reader_of(exchange, gateway, stream_id)
    with gateway.connections.held(caller):
        await _follow(exchange, gateway, caller, _checked(stream_id), _cursor(exchange))


async def _follow(exchange: Exchange, gateway: Gateway, caller: Caller, stream_id: str, after: int) -> None:
    subscription, deployment = await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=after)
    key = series_of(caller, deployment)
    reading = LatencyReading(gateway.latencies, key, Part.RETURNING, arrived_at=exchange.started_at)
    answer = Answer(deployment, "sse", exchange.started_at, reading)
    follower = Follower(gateway, subscription, tenant_id=caller.tenant.id)
    writer = FrameWriter(stream_id, None)
    writer.deployment = deployment
    try:
        limit_stall(exchange.scope, caller.tenant.stall_timeout_seconds)
        tail = await gateway.token_log.tail(subscription.stream_id)  # another's, where it is shared
        if isinstance(tail, Ended) and after >= tail.seq:
            await exchange.answer_empty(204)  # tells an EventSource to stop
            return
        await until_disconnect(exchange, _pump(exchange, gateway, writer, follower, answer, after))
    finally:
        answer.close(client_timed_out=client_timed_out(exchange.scope))
        stream_leave(gateway=gateway, tenant=caller.tenant, subscription=subscription)


async def _pump(
    exchange: Exchange, gateway: Gateway, writer: FrameWriter, follower: Follower, answer: Answer, after: int
) -> None:
    await exchange.start(200, EVENT_STREAM, SSE_HEADERS)
    # An id at once: it passes proxies that wait for a first byte, and a client can resume before the first token.
    await exchange.write(b"retry: %d\nid: %d\ndata:\n\n" % (random.randint(*RETRY_MS), after))  # noqa: S311
    live = live_text(
        exchange.scope,
        answer,
        frame=lambda entry: _event(writer.delta(answer.after_of(entry), entry.seq, entry.text), entry.seq),
        taken=partial(gateway.credit.acknowledge, follower.stream_id),
    )
    ended: Ended | None = None
    while ended is None:
        try:
            entries = await next_entries(follower, answer, live)
        except DrainingError:
            # The end of the body, between events: an EventSource comes back, elsewhere, with its last id.
            await exchange.write(b"", more=False)
            return
        text, ended = answer.take(entries)
        out = _events(writer, answer, entries, text, follower.position)
        news = follower.take_news()
        if news is not None:
            out = _event(writer.place(news), follower.position) + out
        answer.writes()
        if text and ended is None:
            await exchange.write_now(out)
        else:
            await exchange.write(out or b": keep-alive\n\n", more=ended is None)
        if text:
            answer.sent_text()
        if follower.position > after:  # a cursor is only what the client says; attaching has counted what is true of it
            gateway.credit.acknowledge(follower.stream_id, follower.position)


def _events(writer: FrameWriter, answer: Answer, entries: list[AnyLogEntry], text: str, position: int) -> bytes:
    out = b"".join(_event(writer.started(e), e.seq) for e in entries if isinstance(e, Started))
    if text:
        out += _event(writer.delta(answer.told_after(), position, text), position)
    if answer.ended is not None:
        *before, last = final_frames(writer, answer)
        out += b"".join(_event(frame, position) for frame in before) + _event(last, answer.ended.seq)
    return out


def _event(frame: str, event_id: int) -> bytes:
    return b"id: %d\ndata: %s\n\n" % (event_id, frame.encode())


def _caller(exchange: Exchange, gateway: Gateway) -> Caller:
    caller = gateway.authenticate(exchange.bearer())
    gateway.config.require_scope(caller, ApiKeyScope.INFERENCE)
    return caller


def _checked(stream_id: str) -> str:
    if not is_stream_id(stream_id):
        raise StreamNotFoundError(f"There is no stream `{stream_id[:64]}`.", param="stream_id")
    return stream_id


def _cursor(exchange: Exchange) -> int:
    named = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1")).get("after", [])
    text = exchange.header(b"last-event-id") or (named[0] if named else "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidRequestError("`after` (or Last-Event-ID) is the last position that you have, or 0.", param="after")
    return int(text)
