"""What a user's other tabs are told when a conversation changes: names and shapes, in this one place.

Events are hints over the channel layer (`apps.tenants.ui_events`): one may be lost, and a tab that connects again reads
the list anew.
"""

from enum import StrEnum
from functools import partial

from django.db import transaction

from apps.chat.models import Conversation
from apps.tenants.ui_events import ui_event_send, user_group

CONVERSATION_CHANGED = "conversation.changed"


class ConversationChange(StrEnum):
    """What happened to a conversation."""

    TURN = "turn"
    """A message was sent; an answer is on its way."""
    ANSWER = "answer"
    """An answer has ended and is stored."""
    RENAMED = "renamed"
    DELETED = "deleted"


def conversation_changed(conversation: Conversation, change: ConversationChange) -> None:
    """Tells the user's tabs once the running transaction is committed."""
    data = {
        "change": change.value,
        "conversation": {
            "id": str(conversation.id),
            "title": conversation.title,
            "model": conversation.model,
            "updated_at": conversation.updated_at.isoformat(),
        },
    }
    group = user_group(conversation.user_id)
    transaction.on_commit(partial(ui_event_send, group, CONVERSATION_CHANGED, data))
