"""Holds the queue's deadline for streams that the chat started, since no connection of ours follows them yet.

The browser resumes a stream over its own socket, maybe on another gateway, maybe never. Until a worker takes the
stream, the gateway that admitted it keeps watch, in a task that ends with the first entry or with the deadline. It
leaves as any reader does: where nobody else comes, the tenant's policy for unread streams acts.
"""

import asyncio

from apps.streams.follower import Follower
from apps.streams.gateway import Gateway
from apps.streams.services import StartedStream, stream_leave
from headrace_wire.errors import StreamGoneError
from headrace_wire.snapshot import TenantConfig

_watches: set[asyncio.Task[None]] = set()


def queue_deadline_watch(*, gateway: Gateway, started: StartedStream, tenant: TenantConfig) -> None:
    """Takes over the started stream's subscription and leaves it when it is no longer needed."""
    task = asyncio.create_task(_watch(gateway, started, tenant), name=f"queue deadline of {started.stream_id}")
    _watches.add(task)
    task.add_done_callback(_watches.discard)


async def queue_deadlines_forget() -> None:
    """Ends all watches (at the end of the process, and of tests)."""
    for task in list(_watches):
        task.cancel()
    await asyncio.gather(*_watches, return_exceptions=True)


async def _watch(gateway: Gateway, started: StartedStream, tenant: TenantConfig) -> None:
    follower = Follower(
        gateway, started.subscription, tenant_id=tenant.id, queue_deadline_seconds=started.queue_deadline_seconds
    )
    try:
        while not await follower.next():
            pass
    except StreamGoneError:
        pass  # cancelled and expired; whoever reads it is told
    finally:
        stream_leave(gateway=gateway, tenant=tenant, subscription=started.subscription)
