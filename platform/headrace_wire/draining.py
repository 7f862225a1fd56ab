"""Orders to single processes of the fleet: drain, resume, migrate. Whoever gives one sees its progress in the fleet.

An order is an entry of the process' control stream, which exists as long as its lease.
"""

from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.messages import ControlMessage, Drain, Migrate, Resume

MOST_ORDERS = 4096

RESTART_STATUS = 75
"""Exit status of a worker that is to be started anew: supervisors replace what ends with another status than 0."""


class NotThereError(Exception):
    """No process of this name is alive; the message is its name."""


async def drain_worker(
    client: "Redis",
    incarnation: str,
    *,
    reason: str,
    deadline_seconds: float,
    leave: bool = False,
) -> None:
    """Have a worker claim nothing more, and hand over what has not ended by the deadline.

    With `leave` it ends then, with exit status 0; else it stays registered as draining until `resume_worker`.

    Raises:
        NotThereError: its lease has ended.
        redis.exceptions.RedisError: Redis does not answer.
    """
    await order(client, incarnation, Drain(reason, deadline_seconds, leave))


async def restart_worker(client: "Redis", incarnation: str, *, reason: str, deadline_seconds: float) -> None:
    """Have a worker drain and end for a fresh process, which its supervisor starts in its place.

    Raises as `drain_worker`.
    """
    await order(client, incarnation, Drain(reason, deadline_seconds, leave=True, is_restart=True))


async def resume_worker(client: "Redis", incarnation: str) -> None:
    """Have a drained worker take streams again, or a quarantined one start its engine; one that is leaving leaves.

    Raises as `drain_worker`.
    """
    await order(client, incarnation, Resume())


async def drain_gateway(client: "Redis", incarnation: str, *, reason: str) -> None:
    """Have a gateway end as SIGTERM does, by the deadline that it was started with. Raises as `drain_worker`."""
    await order(client, incarnation, Drain(reason, 0.0, leave=True))


async def migrate_stream(client: "Redis", incarnation: str, stream_id: str, *, reason: str) -> None:
    """Have a worker give one of its streams to another one. Raises as `drain_worker`."""
    await order(client, incarnation, Migrate(stream_id, reason))


async def order(client: "Redis", incarnation: str, message: ControlMessage) -> None:
    """Put a message into a process' control stream. Raises as `drain_worker`."""
    key = redis_keys.control_key(incarnation)
    written = await client.xadd(
        key, {"d": codec.encode(message)}, id="1-*", nomkstream=True, maxlen=MOST_ORDERS, approximate=True
    )
    if written is None:
        raise NotThereError(incarnation)
