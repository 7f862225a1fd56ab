"""Stopping a stream, by its client or by its queue deadline."""

from redis.exceptions import RedisError

from apps.streams.endings import OWN_LIMIT_KEPT_IT, QUEUE_TIMEOUT
from apps.streams.gateway import Gateway
from headrace_wire.errors import (
    DependencyUnavailableError,
    HeadraceError,
    RateLimitError,
    ServerOverloadedError,
    StreamNotFoundError,
)
from headrace_wire.flights import Left, Moved, own_end
from headrace_wire.messages import Ended, FinishReason, StreamState, Timings, Usage
from headrace_wire.request_queue import CancelOutcome

RETRY_AFTER_SECONDS = 5.0
"""What a caller is told whose request found no worker within its deadline, or where nothing was measured."""


async def stream_cancel(*, gateway: Gateway, tenant_id: str, stream_id: str, reason: str) -> CancelOutcome:
    """Stop a stream: the engine is told at once, or its place in the queue is freed. `Ended` follows in the log.

    Of a stream that callers of the same request share, only this one's part ends, unless it is the last.

    Idempotent.

    Raises:
        StreamNotFoundError: unknown, or another tenant's.
        DependencyUnavailableError: Redis does not answer.
    """
    try:
        left = await gateway.flights.leave(stream_id, tenant_id=tenant_id)
        if isinstance(left, Moved):
            return await stream_cancel(gateway=gateway, tenant_id=tenant_id, stream_id=left.to, reason=reason)
        if left is not None:
            await _end_own(gateway, stream_id, left)
            if not left.is_last:
                return CancelOutcome.ENDED
            stream_id = left.host
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


async def _end_own(gateway: Gateway, stream_id: str, left: Left) -> None:
    """Tell the readers of one caller, wherever they are, that it has cancelled."""
    name, reason = own_end(stream_id, left.host), FinishReason.ABORT
    told = Ended(name, 0, 0, StreamState.CANCELLED, reason, None, Usage(), Timings())
    await gateway.token_log.tell_readers(left.host, told)


async def stream_expire_in_queue(*, gateway: Gateway, tenant_id: str, stream_id: str) -> None:
    """End a stream that nobody took before its deadline; one that was taken meanwhile goes on.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; call again.
    """
    (place,) = await gateway.queue.places([stream_id])
    outcome, epoch = await gateway.queue.cancel(
        stream_id, tenant_id=tenant_id, reason=QUEUE_TIMEOUT, incarnation=gateway.incarnation, is_forced=False
    )
    if outcome is CancelOutcome.QUEUED:
        error: HeadraceError = ServerOverloadedError(
            "No worker took the request in time; try again later.", retry_after_seconds=RETRY_AFTER_SECONDS
        )
        if place is not None and place.is_own_limit:
            error = RateLimitError(OWN_LIMIT_KEPT_IT, retry_after_seconds=RETRY_AFTER_SECONDS)
        await gateway.endings.failed(stream_id, epoch=epoch, error=error)
