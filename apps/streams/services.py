"""What a gateway does to streams: start, attach, cancel, end. The edges (HTTP, WebSocket, chat) call and render."""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Sequence

import structlog
from msgspec import Struct
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from apps.streams.config_view import Caller
from apps.streams.delivery import Subscription
from apps.streams.detachment import Departure
from apps.streams.gateway import Gateway
from headrace_wire.codec import pack_token_ids
from headrace_wire.errors import (
    ContextLengthError,
    DependencyUnavailableError,
    DrainingError,
    LogRolledBackError,
    ServerOverloadedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headrace_wire.ids import is_stream_id, new_stream_id
from headrace_wire.messages import AnyLogEntry, ChatTurn, GenerateRequest, SamplingParams
from headrace_wire.request_queue import CancelOutcome, Verdict
from headrace_wire.snapshot import DeploymentConfig, DetachedPolicy, TenantConfig

log = structlog.get_logger(__name__)


MIN_WINDOW = 8
"""A smaller window would cost a Redis call per token."""


class StartedStream(Struct, frozen=True):
    """An admitted stream, and the subscription that its first reader follows."""

    stream_id: str
    deployment: DeploymentConfig
    position: int
    """Place in the queue at admission, 1 is next."""
    queue_deadline_seconds: float
    subscription: Subscription


async def stream_start(
    *,
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    conversation: Sequence[ChatTurn],
    sampling: SamplingParams,
    stream_id: str | None = None,
    window: int | None = None,
) -> StartedStream:
    """Render, admit and subscribe. The caller closes the subscription, whatever happens.

    Args:
        gateway: This process' runtime.
        caller: Whose stream it will be.
        deployment: Where it runs; looked up with `ConfigView.deployment`.
        conversation: The messages, system first.
        sampling: Checked fields; `max_tokens` 0 takes the deployment's default, `seed` -1 draws one.
        stream_id: A new id made before (the chat stores it first); made here when None.
        window: Tokens that may be generated beyond the acknowledged ones; at most, and by default, the tenant's.

    Raises:
        ContextLengthError: prompt and answer do not fit.
        ServerOverloadedError: the queue is full.
        DrainingError: this gateway takes no new streams.
        DependencyUnavailableError: Redis does not answer.
    """
    if gateway.draining:
        raise DrainingError("This gateway is shutting down; send the request again.", retry_after_seconds=1.0)
    stream_id = stream_id or new_stream_id()
    prompt_ids = await _render(gateway, deployment, conversation)
    request = GenerateRequest(
        stream_id=stream_id,
        tenant_id=caller.tenant.id,
        deployment=deployment.name,
        sampling=_complete(gateway, deployment, sampling, prompt_ids),
        cache_salt=cache_salt(gateway.secret, caller.tenant.id),
        prompt_ids=pack_token_ids(prompt_ids or ()),
        conversation=() if prompt_ids is not None else tuple(conversation),
        window=_window(caller.tenant, window),
        log_ttl_seconds=caller.tenant.retention_seconds,
        ttft_timeout_seconds=deployment.ttft_timeout_seconds,
        inter_token_timeout_seconds=deployment.inter_token_timeout_seconds,
    )
    # Before admission, so that nothing can be delivered that nobody waits for.
    subscription = gateway.delivery.subscribe(stream_id)
    try:
        position = await _admit(gateway, deployment, request)
    except BaseException:
        subscription.close()
        raise
    gateway.credit.open(stream_id, window=request.window, granted=request.window)
    return StartedStream(stream_id, deployment, position, deployment.queue_timeout_seconds, subscription)


async def stream_attach(*, gateway: Gateway, caller: Caller, stream_id: str, after: int) -> tuple[Subscription, str]:
    """Follow an existing stream of the caller's tenant from after position `after`.

    Returns (subscription, deployment name). The caller closes the subscription.

    Raises:
        StreamNotFoundError: unknown, or another tenant's.
        StreamGoneError: its log has expired.
        LogRolledBackError: it has ended before position `after`.
        DependencyUnavailableError: Redis does not answer.
    """
    try:
        record = await gateway.queue.record(stream_id) if is_stream_id(stream_id) else None
        if record is None or record.tenant_id != caller.tenant.id:
            raise StreamNotFoundError(f"There is no stream `{stream_id[:64]}`.", param="stream_id")
        # Ended streams have nothing more to deliver; to attach to one that ends just now does no harm.
        if not record.state.is_terminal and not await gateway.token_log.attach(stream_id, gateway.incarnation):
            raise StreamGoneError("The stream's log has expired.")
        if record.state.is_terminal:
            _check_cursor(await gateway.token_log.tail(stream_id), after)
    except RedisError as error:
        raise DependencyUnavailableError("The stream store does not answer; try again.") from error
    gateway.detachment.returned(stream_id)
    if not record.state.is_terminal:
        window = _window(caller.tenant, None)
        gateway.credit.open(stream_id, window=window, acknowledged=after, granted=record.credit)
    return gateway.delivery.subscribe(stream_id, after=after, read_log=True), record.deployment


def _check_cursor(tail: AnyLogEntry | None, after: int) -> None:
    if tail is None:
        raise StreamGoneError("The stream's log has expired.")
    if after > tail.seq:
        raise LogRolledBackError(f"The stream has ended at position {tail.seq - 1}, before your cursor {after}.")


def stream_leave(
    *, gateway: Gateway, tenant: TenantConfig, subscription: Subscription, can_return: bool = True
) -> None:
    """End a reader's subscription; the last one of a stream that goes on sets the tenant's detached policy in motion.

    `can_return` is False for a client that has no means to resume: its stream is aborted at once.
    """
    subscription.close()
    stream_id = subscription.stream_id
    if gateway.delivery.is_read(stream_id):
        return
    if subscription.ended:
        gateway.credit.close(stream_id)
        return
    departure = Departure(
        stream_id,
        tenant.id,
        tenant.detached_policy if can_return else DetachedPolicy.ABORT,
        tenant.detached_grace_seconds if can_return else 0.0,
        subscription.position,
        tenant.detached_tokens,
    )
    gateway.detachment.departed(departure, gateway=gateway.incarnation)


async def stream_cancel(*, gateway: Gateway, tenant_id: str, stream_id: str, reason: str) -> CancelOutcome:
    """Stop a stream: the engine is told at once, or its place in the queue is freed. `Ended` follows in the log.

    Idempotent.

    Raises:
        StreamNotFoundError: unknown, or another tenant's.
        DependencyUnavailableError: Redis does not answer.
    """
    try:
        outcome, epoch = await gateway.queue.cancel(
            stream_id, tenant_id=tenant_id, reason=reason, incarnation=gateway.incarnation
        )
        if outcome is CancelOutcome.UNKNOWN:
            raise StreamNotFoundError(f"There is no stream `{stream_id[:64]}`.", param="stream_id")
        if outcome is CancelOutcome.QUEUED:
            await gateway.endings.cancelled(stream_id, epoch=epoch)
    except RedisError as error:
        raise DependencyUnavailableError("The stream store does not answer; try again.") from error
    return outcome


async def stream_expire_in_queue(*, gateway: Gateway, tenant_id: str, stream_id: str) -> None:
    """End a stream that nobody took before its deadline; one that was taken meanwhile goes on.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; call again.
    """
    outcome, epoch = await gateway.queue.cancel(
        stream_id, tenant_id=tenant_id, reason="queue_timeout", incarnation=gateway.incarnation
    )
    if outcome is CancelOutcome.QUEUED:
        await gateway.endings.failed(
            stream_id, epoch=epoch, error=ServerOverloadedError("No worker took the request in time; try again later.")
        )


def cache_salt(secret: bytes, tenant_id: str) -> str:
    """Return the prefix-cache partition of a tenant; a client can neither choose nor guess it (CVE-2025-46570)."""
    return hmac.new(secret, f"cache-salt:{tenant_id}".encode(), hashlib.sha256).hexdigest()[:32]


def _window(tenant: TenantConfig, asked: int | None) -> int:
    return min(tenant.stream_window, max(MIN_WINDOW, asked)) if asked is not None else tenant.stream_window


async def _render(gateway: Gateway, deployment: DeploymentConfig, conversation: Sequence[ChatTurn]) -> list[int] | None:
    renderer = gateway.renderers.get(gateway.fleet.fingerprint(deployment.name))
    if renderer is None:
        return None
    return await asyncio.to_thread(renderer.render, conversation)


def _complete(
    gateway: Gateway, deployment: DeploymentConfig, sampling: SamplingParams, prompt_ids: Sequence[int] | None
) -> SamplingParams:
    """Fill in what the caller left open, and refuse what cannot fit."""
    max_tokens = sampling.max_tokens
    limit = _context_limit(gateway, deployment)
    if prompt_ids is not None and limit:
        room = limit - len(prompt_ids)
        if room < max(1, max_tokens):
            raise ContextLengthError(
                f"This model's maximum context length is {limit} tokens, and your messages take {len(prompt_ids)}"
                + (f" with {max_tokens} asked for the answer" if max_tokens else "")
                + ". Shorten the messages or ask for fewer tokens.",
                param="messages",
            )
        max_tokens = max_tokens or min(deployment.default_max_tokens, room)
    changes: dict[str, object] = {"max_tokens": max_tokens or deployment.default_max_tokens}
    if sampling.seed < 0:
        changes["seed"] = secrets.randbelow(2**31)
    known = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return SamplingParams(**{**known, **changes})


def _context_limit(gateway: Gateway, deployment: DeploymentConfig) -> int:
    reported = [w.max_model_len for w in gateway.fleet.workers(deployment.name) if w.max_model_len]
    return min(reported) if reported else deployment.max_model_len or 0


async def _admit(gateway: Gateway, deployment: DeploymentConfig, request: GenerateRequest) -> int:
    calls = [
        gateway.token_log.open_call(request.stream_id, readers=[gateway.incarnation]),
        gateway.queue.admit_call(
            request, queue_limit=deployment.queue_limit, queue_timeout_seconds=deployment.queue_timeout_seconds
        ),
    ]
    try:
        try:
            _, reply = await gateway.functions.call_many(calls)
        except RedisConnectionError:
            # A pooled connection that Redis had closed, or a lost answer: both calls may be repeated.
            _, reply = await gateway.functions.call_many(calls)
        verdict, position = gateway.queue.parse_verdict(reply)
        if verdict is Verdict.FULL:
            await gateway.token_log.discard(request.stream_id)
            raise ServerOverloadedError(
                f"All {position} places in the queue of `{deployment.name}` are taken; try again later.",
                retry_after_seconds=5.0,
            )
    except RedisError as error:
        raise DependencyUnavailableError(
            "The request could not be admitted because the stream store does not answer; try again.",
            retry_after_seconds=1.0,
        ) from error
    return position
