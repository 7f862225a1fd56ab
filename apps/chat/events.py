"""What other tabs of a user are told over the channel layer: names and shapes, in this one place.

Events go to the group of the user, whose tabs hold a socket at `/ws/ui`. They are hints: one may be lost, and a tab
that connects again reads the list anew.
"""

from enum import StrEnum
from typing import Any
from uuid import UUID

import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

from apps.chat.models import Conversation

logger = structlog.get_logger(__name__)

CONVERSATION_CHANGED = "conversation.changed"


class ConversationChange(StrEnum):
    """What happened to a conversation."""

    TURN = "turn"
    """A message was sent; an answer is on its way."""
    ANSWER = "answer"
    """An answer has ended and is stored."""
    RENAMED = "renamed"
    DELETED = "deleted"


def user_group(user_id: UUID) -> str:
    """Returns the channel layer's group of a user's tabs."""
    return f"user.{user_id.hex}"


def conversation_changed(conversation: Conversation, change: ConversationChange) -> None:
    """Tells the user's tabs once the running transaction is committed."""
    group = user_group(conversation.user_id)
    event = {
        "type": "ui.event",
        "event": CONVERSATION_CHANGED,
        "data": {
            "change": change.value,
            "conversation": {
                "id": str(conversation.id),
                "title": conversation.title,
                "model": conversation.model,
                "updated_at": conversation.updated_at.isoformat(),
            },
        },
    }
    transaction.on_commit(lambda: _send(group, event))


def _send(group: str, event: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        async_to_sync(layer.group_send)(group, event)
    except (RedisError, OSError) as error:
        logger.warning("ui_event_not_sent", change=event["data"]["change"], error=str(error))
