"""Following a stream that exists, and leaving it."""

from redis.exceptions import RedisError

from apps.streams.config_view import Caller
from apps.streams.detachment import departure_of
from apps.streams.gateway import Gateway
from apps.streams.subscription import Subscription
from headrace_wire.errors import (
    DependencyUnavailableError,
    LogRolledBackError,
    StreamCancelledError,
    StreamGoneError,
    StreamNotFoundError,
)
from headrace_wire.flights import own_end
from headrace_wire.ids import is_stream_id
from headrace_wire.messages import AnyLogEntry, StreamState
from headrace_wire.request_queue import StreamRecord
from headrace_wire.snapshot import TenantConfig

MIN_WINDOW = 8
"""A smaller window would cost a Redis call per token."""


async def stream_attach(*, gateway: Gateway, caller: Caller, stream_id: str, after: int) -> tuple[Subscription, str]:
    """Follow an existing stream of the caller's tenant from after position `after`.

    Returns (subscription, deployment name). The caller closes the subscription.

    Raises:
        StreamNotFoundError: unknown, or another tenant's.
        StreamGoneError: its log has expired.
        LogRolledBackError: it has ended before position `after`, or is there and nobody has it who could know more.
        DependencyUnavailableError: Redis does not answer.
    """
    try:
        stream_id, record = await stream_find(gateway=gateway, caller=caller, stream_id=stream_id)
        own_id, stream_id, record = await _host_of(gateway, stream_id, record)
        # At once: its policy must not act between here and the subscription.
        departure = gateway.detachment.returned(stream_id)
        try:
            subscription = await _attach(gateway, caller, stream_id, record, after, own_id)
        except BaseException:
            if not record.state.is_terminal and not gateway.delivery.is_read(stream_id):
                departure = departure or departure_of(caller.tenant, stream_id, position=after, can_return=True)
                gateway.detachment.departed(departure, gateway=gateway.incarnation)
            raise
    except RedisError as error:
        raise DependencyUnavailableError("The stream store does not answer; try again.") from error
    return subscription, record.deployment


async def stream_find(*, gateway: Gateway, caller: Caller, stream_id: str) -> tuple[str, StreamRecord]:
    """Return a stream of the caller's tenant: the id that it has now, and its record.

    Raises:
        StreamNotFoundError: unknown, or another tenant's.
        redis.exceptions.RedisError: Redis does not answer.
    """
    name = stream_id
    while True:
        record = await gateway.queue.record(name) if is_stream_id(name) else None
        if record is None or record.tenant_id != caller.tenant.id:
            raise StreamNotFoundError(f"There is no stream `{stream_id[:64]}`.", param="stream_id")
        if not record.second:
            return name, record
        name = record.second


async def _host_of(gateway: Gateway, stream_id: str, record: StreamRecord) -> tuple[str, str, StreamRecord]:
    """Return under which name a reader's own end is told, and the stream that it reads: another one's, if it is shared.

    Raises:
        StreamCancelledError: its caller has left it.
        StreamGoneError: the shared one's log has expired.
    """
    if not record.rides:
        return own_end(stream_id, stream_id), stream_id, record
    if record.state is StreamState.CANCELLED:
        raise StreamCancelledError("The stream was cancelled.")
    host = await gateway.queue.record(record.rides)
    if host is None:
        raise StreamGoneError("The stream's log has expired.")
    return own_end(stream_id, record.rides), record.rides, host


async def _attach(
    gateway: Gateway, caller: Caller, stream_id: str, record: StreamRecord, after: int, own_id: str
) -> Subscription:
    # Ended streams have nothing more to deliver; to attach to one that ends just now does no harm.
    if not record.state.is_terminal and not await gateway.token_log.attach(stream_id, gateway.incarnation):
        raise StreamGoneError("The stream's log has expired.")
    tail = await _furthest(gateway, stream_id, after) if after or record.state.is_terminal else None
    if after or record.state.is_terminal:
        _check_cursor(tail, after, record.state)
    is_ahead = tail is not None and after > tail.seq
    subscription = gateway.delivery.subscribe(
        stream_id, after=after, read_log=True, caller=caller, had_under=record.epoch if is_ahead else 0, own_id=own_id
    )
    if not record.state.is_terminal:
        window = record.window if record.window is not None else window_of(caller.tenant, None)
        gateway.credit.open(stream_id, window=window, granted=record.credit)
        # What it resumes after, it has; its acknowledgement may be lost, and there may be nothing more for it to take.
        gateway.credit.acknowledge(stream_id, min(after, tail.seq if tail is not None else 0))
    if record.state is StreamState.QUEUED:
        gateway.watch_place(subscription, deployment=record.deployment)
    return subscription


def stream_leave(
    *, gateway: Gateway, tenant: TenantConfig, subscription: Subscription, can_return: bool = True
) -> None:
    """End a reader's subscription; the last one of a stream that goes on sets the tenant's detached policy in motion.

    `can_return` is False for a client that has no means to resume: its stream is aborted at once.
    """
    subscription.close()
    stream_id = subscription.stream_id
    if subscription.has_all:
        return
    can_return = can_return and not subscription.has_left
    if gateway.delivery.is_read(stream_id):
        return
    if subscription.ended:
        gateway.credit.close(stream_id)
        return
    departure = departure_of(tenant, stream_id, position=subscription.position, can_return=can_return)
    gateway.detachment.departed(departure, gateway=gateway.incarnation)


def window_of(tenant: TenantConfig, asked: int | None) -> int:
    """Return the token window of a stream: what the caller asks for, within what the tenant may have."""
    return min(tenant.stream_window, max(MIN_WINDOW, asked)) if asked is not None else tenant.stream_window


_WITHOUT_OWNER = frozenset({StreamState.QUEUED, StreamState.SUSPENDED})


async def _furthest(gateway: Gateway, stream_id: str, after: int) -> AnyLogEntry | None:
    tail = await gateway.token_log.tail(stream_id)
    if tail is None or after <= tail.seq:
        return tail
    # A fence may name an older position than what stands before it.
    entries = await gateway.token_log.read(stream_id) or [tail]
    return max(entries, key=lambda entry: entry.seq)


def _check_cursor(tail: AnyLogEntry | None, after: int, state: StreamState) -> None:
    if tail is None:
        raise StreamGoneError("The stream's log has expired.")
    if after > tail.seq and state.is_terminal:
        raise LogRolledBackError(f"The stream has ended at position {tail.seq - 1}, before your cursor {after}.")
    if after > tail.seq and state in _WITHOUT_OWNER:
        raise LogRolledBackError(
            f"The stream is at position {tail.seq}, before your cursor {after}: the stream store has lost what you"
            " have. Read it again from its beginning."
        )
