"""Writes of conversations as a whole."""

from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from apps.chat.events import ConversationChange, conversation_changed
from apps.chat.models import TITLE_LENGTH, Conversation
from apps.chat.selectors import conversation_get
from apps.tenants.models import Membership, Tenant
from headrace_wire.errors import InvalidRequestError


def title_from(text: str) -> str:
    """Returns a title for a conversation that begins with `text`: its first line, cut at a word."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "New conversation")
    line = " ".join(line.split())
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[: TITLE_LENGTH - 1]
    head, _, _ = cut.rpartition(" ")
    return (head if len(head) > TITLE_LENGTH // 2 else cut).rstrip() + "…"


@transaction.atomic
def conversation_rename(*, membership: Membership, conversation_id: UUID, title: str) -> Conversation:
    """Gives a conversation another title.

    Raises:
        ConversationNotFoundError: There is none, or it is somebody else's.
        InvalidRequestError: The title is empty or too long.
    """
    title = " ".join(title.replace("\x00", "").split())  # PostgreSQL stores no NUL
    if not title or len(title) > TITLE_LENGTH:
        raise InvalidRequestError(f"A title has 1 to {TITLE_LENGTH} characters.", param="title")
    conversation = conversation_get(membership=membership, conversation_id=conversation_id, lock=True)
    conversation.title = title
    conversation.save(update_fields=["title"])
    conversation_changed(conversation, ConversationChange.RENAMED)
    return conversation


@transaction.atomic
def conversation_delete(*, membership: Membership, conversation_id: UUID) -> list[str]:
    """Deletes a conversation with its messages; returns the streams that are to be cancelled, since nobody wants them.

    Raises:
        ConversationNotFoundError: There is none, or it is somebody else's.
    """
    conversation = conversation_get(membership=membership, conversation_id=conversation_id, lock=True)
    streams = [message.stream_id for message in conversation.messages.all() if message.is_streaming]
    conversation_changed(conversation, ConversationChange.DELETED)
    conversation.delete()
    return [stream_id for stream_id in streams if stream_id]


def conversations_expire() -> int:
    """Deletes what is older than its tenant's retention; returns how many conversations."""
    deleted = 0
    for tenant in Tenant.objects.order_by("pk"):
        before = timezone.now() - timedelta(days=tenant.retention_days)
        with transaction.atomic():
            expired = list(Conversation.objects.for_tenant(tenant).filter(updated_at__lt=before)[:1000])
            for conversation in expired:
                conversation_changed(conversation, ConversationChange.DELETED)
                conversation.delete()
        deleted += len(expired)
    return deleted
