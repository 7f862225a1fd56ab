"""`POST /v1/chat/completions`, plain and streamed."""

import hashlib
import time
from functools import partial
from urllib.parse import quote

import structlog

from apps.api.answer import Answer
from apps.api.cache_controls import cache_controls
from apps.api.error_rendering import error_body, logged_error, rate_headers
from apps.api.http import Exchange
from apps.api.live_text import live_text, next_entries
from apps.api.openai_format import ChatChunks, chat_completion
from apps.api.requests import ChatCompletionRequest, parse_chat_completion
from apps.api.serving import EVENT_STREAM, SSE_HEADERS, until_disconnect
from apps.streams.config_view import Caller
from apps.streams.follower import Follower
from apps.streams.gateway import Gateway
from apps.streams.latency_reading import LatencyReading, part_of, refusals_counted, series_of
from apps.streams.limits import QueueNews
from apps.streams.services import StartedStream, StreamOptions, stream_leave, stream_start
from apps.streams.services.routing import Route, stream_route, try_kept, try_noted
from apps.streams.traces import Trace
from apps.streams.transport import client_timed_out, limit_stall
from headrace_wire.api_key import ApiKeyScope
from headrace_wire.errors import HeadraceError, InvalidRequestError, StreamCancelledError
from headrace_wire.messages import AnyLogEntry, Delta, Ended, SamplingParams, StreamState
from headrace_wire.request_queue import Idempotency

log = structlog.get_logger(__name__)


IDEMPOTENCY_HEADER = b"idempotency-key"
MAX_IDEMPOTENCY_KEY_LENGTH = 255


async def chat_completions(exchange: Exchange, gateway: Gateway) -> None:
    """Serve one request.

    Raises:
        HeadraceError: refused or failed before the answer began.
        ClientDisconnectedError: the client left.
    """
    caller = gateway.authenticate(exchange.bearer())
    gateway.config.require_scope(caller, ApiKeyScope.INFERENCE)
    with gateway.connections.held(caller):
        body = await exchange.body()
        request = parse_chat_completion(body)
        await until_disconnect(exchange, _serve(exchange, gateway, caller, request, _idempotency(exchange, body)))


async def _serve(
    exchange: Exchange,
    gateway: Gateway,
    caller: Caller,
    request: ChatCompletionRequest,
    idempotency: Idempotency | None,
) -> None:
    sampling = request.sampling()  # first: a request that cannot be understood tries no deployment
    route = stream_route(gateway=gateway, caller=caller, model=request.model)
    limit_stall(exchange.scope, caller.tenant.stall_timeout_seconds)
    with gateway.traces.request(
        dict(exchange.scope["headers"]),
        model=route.deployment.name,
        tenant_id=caller.tenant.id,
        sampling=sampling,
        arrived_at=exchange.started_at,
    ) as trace:
        await _answer(exchange, gateway, caller, request, sampling, route, idempotency, trace)


async def _answer(
    exchange: Exchange,
    gateway: Gateway,
    caller: Caller,
    request: ChatCompletionRequest,
    sampling: SamplingParams,
    route: Route,
    idempotency: Idempotency | None,
    trace: Trace,
) -> None:
    key = series_of(caller, route.deployment.name)
    with refusals_counted(gateway.latencies, key), try_kept(gateway, route):
        started = await stream_start(
            gateway=gateway,
            caller=caller,
            deployment=route.deployment,
            conversation=request.conversation(),
            sampling=sampling,
            options=StreamOptions(
                # Only a client that named a key can come back; else the engine must not go on for nobody.
                can_return=idempotency is not None,
                idempotency=idempotency,
                priority=request.priority,
                prompt_cache=request.prompt_cache,
                cache=cache_controls(request.cache, exchange.header(b"cache-control"), request.user),
                traceparent=trace.traceparent,
                stands_in_for=route.stands_in_for,
                only_kept=route.only_kept,
            ),
            on_wait=partial(_tell_place, exchange) if request.stream else None,
        )
    try_noted(gateway, route, started)
    deployment = started.deployment
    exchange.stream_id = started.stream_id
    trace.admitted(started.stream_id)
    reading = LatencyReading(gateway.latencies, key, part_of(started), arrived_at=exchange.started_at)
    exchange.headers += [
        (b"x-headrace-stream-id", started.stream_id.encode()),
        (b"x-headrace-model-deployment", deployment.name.encode("latin-1", "replace")),
        *_cache_headers(started),
        *_guardrail_headers(started),
        *rate_headers(started.rates),
    ]
    answer = Answer(deployment.name, "sse" if request.stream else "http", exchange.started_at, reading)
    follower = Follower(
        gateway,
        started.subscription,
        tenant_id=caller.tenant.id,
        queue_deadline_seconds=None if started.is_shared else started.queue_deadline_seconds,
    )
    try:
        pump = _stream if request.stream else _plain
        await pump(exchange, gateway, request, started, follower, answer)
    finally:
        answer.close(client_timed_out=client_timed_out(exchange.scope))
        trace.answered(answer)
        stream_leave(
            gateway=gateway,
            tenant=caller.tenant,
            subscription=started.subscription,
            can_return=idempotency is not None,
        )


def _cache_headers(started: StartedStream) -> list[tuple[bytes, bytes]]:
    cache = started.cache
    headers = [(b"x-headrace-cache", cache.word.value.encode())]
    if cache.age_seconds is not None:
        headers.append((b"age", str(cache.age_seconds).encode()))
    if cache.similarity is not None:
        headers.append((b"x-headrace-cache-similarity", f"{cache.similarity:.3f}".encode()))
    return headers


def _guardrail_headers(started: StartedStream) -> list[tuple[bytes, bytes]]:
    # A comma separates names; what a header may not hold, and what would be read as an escape, is escaped.
    names = ",".join(quote(name, safe=" !\"#$&'()*+./:;<=>?@[]^`{|}~") for name in started.guardrails)
    return [(b"x-headrace-applied-guardrails", names.encode())] if names else []


async def _tell_place(exchange: Exchange, news: QueueNews) -> None:
    """Tell a streamed request that it waits in this gateway's line: in the first headers, then in comments."""
    if not exchange.answered:
        await exchange.start(200, EVENT_STREAM, [*SSE_HEADERS, *_place_headers(news)])
    await exchange.write(_place(news))


def _eta(news: QueueNews) -> str:
    return "" if news.eta_seconds is None else "-".join(str(round(seconds * 1000)) for seconds in news.eta_seconds)


def _place_headers(news: QueueNews) -> list[tuple[bytes, bytes]]:
    told = [(b"x-headrace-queue-position", str(news.position).encode())]
    eta = _eta(news)
    return [*told, (b"x-headrace-queue-eta-ms", eta.encode())] if eta else told


def _place(news: QueueNews) -> bytes:
    """Return the comment that tells a place: OpenAI's clients skip it, and proxies see that something happens."""
    eta, reason = _eta(news), news.reason
    return f": queued position={news.position}{eta and f' eta_ms={eta}'}{reason and f' reason={reason}'}\n\n".encode()


async def _stream(
    exchange: Exchange,
    gateway: Gateway,
    request: ChatCompletionRequest,
    started: StartedStream,
    follower: Follower,
    answer: Answer,
) -> None:
    include_usage = request.stream_options is not None and request.stream_options.include_usage
    chunks = ChatChunks(started.stream_id, request.model, include_usage=include_usage, created_at=started.created_at)
    early = await _until_judged(follower) if started.awaits_verdict and not exchange.answered else []
    if not exchange.answered:
        await exchange.start(200, EVENT_STREAM, [*SSE_HEADERS, *_place_headers(started.place)])
    # A comment at once commits the status and passes proxies that wait for a first byte.
    await exchange.write(_place(started.place))
    head = chunks.first()
    live = live_text(
        exchange.scope,
        answer,
        frame=chunks.live,
        # Asked anew each time: who shared a stream that failed goes on with another one.
        taken=lambda seq: gateway.credit.acknowledge(follower.stream_id, seq),
    )
    ended: Ended | None = None
    while ended is None:
        entries, early = early or await next_entries(follower, answer, live), []
        text, ended = answer.take(entries)
        if ended is not None and ended.replacement is not None:
            text += ended.replacement.text  # OpenAI's format has no word for a retraction
        out = b""
        if text:
            out, head = head + chunks.delta(text), b""
        if ended is not None:
            out += _ending(chunks, head, ended)
        elif not entries:
            news = follower.take_news()
            out = b": keep-alive\n\n" if news is None else _place(news)
        answer.writes()
        if out and ended is None:
            await exchange.write_now(out)
        elif out:
            await exchange.write(out, more=False)
        if text:
            answer.sent_text()
            # What the transport has taken counts as delivered (its buffers are bounded and stated in docs).
            gateway.credit.acknowledge(follower.stream_id, started.subscription.position)


async def _until_judged(follower: Follower) -> list[AnyLogEntry]:
    """Wait for the first text, so that a request that is blocked before it is still answered with its real status.

    Raises:
        HeadraceError: it was blocked, or failed.
    """
    entries: list[AnyLogEntry] = []
    while not any(isinstance(entry, Delta | Ended) for entry in entries):
        more = await follower.next()
        if not more:
            return entries  # it takes long: the client is to see that something happens
        entries += more
    last = entries[-1]
    error = _failure(last) if isinstance(last, Ended) else None
    if error is not None and not any(isinstance(entry, Delta) for entry in entries):
        raise error
    return entries


def _ending(chunks: ChatChunks, head: bytes, ended: Ended) -> bytes:
    error = _failure(ended)
    if error is not None:
        return b"data: " + error_body(error) + b"\n\n"
    return head + chunks.last(ended)


async def _plain(
    exchange: Exchange,
    gateway: Gateway,
    request: ChatCompletionRequest,
    started: StartedStream,
    follower: Follower,
    answer: Answer,
) -> None:
    parts: list[str] = []
    ended: Ended | None = None
    while ended is None:
        text, ended = answer.take(await follower.next())
        if text:
            parts.append(text)
            answer.sent_text()
            gateway.credit.acknowledge(follower.stream_id, started.subscription.position)
    error = _failure(ended)
    if error is not None:
        raise error
    exchange.headers.append((b"x-headrace-queue-ms", str(round(answer.queue_seconds * 1000)).encode()))
    exchange.headers.append((b"x-headrace-ttft-ms", str(round((answer.ttft_seconds or 0.0) * 1000)).encode()))
    text = "".join(parts)
    if ended.replacement is not None:
        text = ended.replacement.applied_to(text)
    body = chat_completion(started.stream_id, request.model, text, ended, created_at=started.created_at)
    answer.writes()
    await exchange.answer_json(200, body)


def _failure(ended: Ended) -> HeadraceError | None:
    """Return why there is no finished answer, or None for a finished one."""
    if ended.error is not None:
        return logged_error(ended.error)
    if ended.state not in {StreamState.FINISHED, StreamState.REPLACED}:
        return StreamCancelledError("The stream was cancelled.")
    return None


def _idempotency(exchange: Exchange, body: bytes) -> Idempotency | None:
    """Return the caller's key and what it is used for; same key and same bytes mean the same stream."""
    key = exchange.header(IDEMPOTENCY_HEADER)
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY_LENGTH:
        raise InvalidRequestError(f"Idempotency-Key must have 1 to {MAX_IDEMPOTENCY_KEY_LENGTH} characters.")
    return Idempotency(_digest(key.encode()), _digest(body), int(time.time()))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:40]
