"""Events for open pages (`/ws/ui`): something changed, look again. Never tokens, never a secret.

They go over the channel layer, which may lose them: a page reads anew when it connects. A page receives
`{"type": <event>, "data": {...}}` (`apps.ops.consumers`).
"""

import hashlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

logger = structlog.get_logger(__name__)

FLEET_GROUP = "fleet"
"""Workers going up and down; staff listen."""


LATENCY_GROUP = "latency"
"""That there are new latencies, without any of them; latency pages listen (`/ws/ui?hear=latency`)."""


def user_group(user_id: UUID) -> str:
    """Returns the group of one person's pages."""
    return f"user.{user_id.hex}"


def tenant_group(tenant_id: UUID) -> str:
    """Returns the group of all members' pages."""
    return f"tenant.{tenant_id.hex}"


def session_group(session_key: str) -> str:
    """Returns the group of all sockets that one sign-in opened; it gives nothing of the key away."""
    return f"session.{hashlib.sha256(session_key.encode()).hexdigest()[:32]}"


async def ui_event_send_async(group: str, event: str, data: Mapping[str, Any] | None = None) -> None:
    """Sends an event; where the channel layer is away it is logged, and pages read anew when they reconnect."""
    await _send(group, {"type": "ui.event", "event": event, "data": dict(data or {})})


async def sockets_close_async(group: str) -> None:
    """Has all sockets of a session's group close: whoever opened them has signed out."""
    await _send(group, {"type": "session.ended"})


async def _send(group: str, message: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        await layer.group_send(group, message)
    except (RedisError, OSError) as error:
        logger.warning("ui_event_lost", group=group, name=message["type"], error=str(error))


ui_event_send = async_to_sync(ui_event_send_async)
"""The same for synchronous code."""

sockets_close = async_to_sync(sockets_close_async)
"""The same for synchronous code."""
