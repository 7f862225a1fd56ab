"""Reads of conversations. `conversation_get` is the one way to a conversation on behalf of a caller."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Self
from uuid import UUID

from django.contrib.auth.base_user import AbstractBaseUser
from django.db.models import Q

from apps.chat.enums import MessageRole, MessageState
from apps.chat.errors import ConversationNotFoundError
from apps.chat.models import Conversation, Message
from apps.guardrails.bench_sources import StoredAnswer
from apps.tenants.enums import ExcerptRetention
from apps.tenants.models import Membership, Tenant
from headrace_wire.errors import ContentFilterError, InvalidRequestError
from headrace_wire.messages import ChatTurn, FinishReason

CONVERSATION_PAGE = 30
MESSAGE_PAGE = 50


class Cursor(NamedTuple):
    """Where a page of the list begins: after the conversation with these values."""

    updated_at: datetime
    id: UUID

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` wrote.

        Raises:
            InvalidRequestError: It is none.
        """
        at, _, key = text.partition("_")
        try:
            cursor = cls(datetime.fromisoformat(at), UUID(key))
        except ValueError as error:
            raise InvalidRequestError("`before` is not a cursor of this list.", param="before") from error
        if cursor.updated_at.tzinfo is None:
            raise InvalidRequestError("`before` is not a cursor of this list.", param="before")
        return cursor

    def __str__(self) -> str:
        return f"{self.updated_at.isoformat()}_{self.id.hex}"


class ConversationPage(NamedTuple):
    """Conversations, newest first, and where the next page begins."""

    conversations: list[Conversation]
    next: Cursor | None


class MessagePage(NamedTuple):
    """Messages in order, and whether there are earlier ones."""

    messages: list[Message]
    has_earlier: bool


def conversation_list(*, membership: Membership, before: Cursor | None = None) -> ConversationPage:
    """Returns a page of the member's conversations; one query."""
    found = Conversation.objects.for_tenant(membership.tenant).filter(user_id=membership.user_id)
    if before is not None:
        found = found.filter(Q(updated_at__lt=before.updated_at) | Q(updated_at=before.updated_at, id__lt=before.id))
    rows = list(found[: CONVERSATION_PAGE + 1])
    page = rows[:CONVERSATION_PAGE]
    following = Cursor(page[-1].updated_at, page[-1].id) if len(rows) > CONVERSATION_PAGE else None
    return ConversationPage(page, following)


def conversation_get(*, membership: Membership, conversation_id: UUID, lock: bool = False) -> Conversation:
    """Returns a conversation of the member; `lock` holds it until the transaction ends.

    Raises:
        ConversationNotFoundError: There is none, or it is somebody else's.
    """
    found = Conversation.objects.for_tenant(membership.tenant)
    found = found.select_for_update() if lock else found
    conversation = found.filter(pk=conversation_id, user_id=membership.user_id).first()
    if conversation is None:
        raise ConversationNotFoundError("There is no such conversation. It may have been deleted.")
    return conversation


def message_get(*, conversation: Conversation, message_id: UUID) -> Message:
    """Returns a message of the conversation.

    Raises:
        ConversationNotFoundError: It has none of this id.
    """
    message = conversation.messages.filter(pk=message_id).select_related("conversation").first()
    if message is None:
        raise ConversationNotFoundError("There is no such message. It may have been deleted.")
    return message


def message_list(*, conversation: Conversation, before: int | None = None) -> MessagePage:
    """Returns the last messages, or the last ones before position `before`; one query."""
    found = conversation.messages.order_by("-position")
    if before is not None:
        found = found.filter(position__lt=before)
    rows = list(found[: MESSAGE_PAGE + 1])
    return MessagePage(rows[:MESSAGE_PAGE][::-1], len(rows) > MESSAGE_PAGE)


def messages_streaming() -> list[Message]:
    """Returns every answer, of all tenants, whose end is not stored; the oldest first."""
    found = Message.all_tenants.filter(state=MessageState.STREAMING)
    return list(found.select_related("conversation").order_by("started_at")[:1000])


def answers_to_replay(*, tenant: Tenant, user: AbstractBaseUser, limit: int) -> list[StoredAnswer]:
    """Returns the newest complete answers for the test bench of guardrails.

    What was said stays with the user: these are the user's own, and those of others only where the tenant has excerpts
    of interventions kept in full.
    """
    rows = Message.objects.for_tenant(tenant).filter(role=MessageRole.ASSISTANT, state=MessageState.COMPLETE)
    if tenant.intervention_excerpts != ExcerptRetention.FULL:
        rows = rows.filter(conversation__user_id=user.pk)
    return [
        StoredAnswer(
            key=str(row.pk), label=f"{row.created_at:%Y-%m-%d %H:%M} {row.model}: {_start(row)}", text=row.content
        )
        for row in rows.order_by("-created_at")[:limit]
    ]


def _start(row: Message) -> str:
    return " ".join(row.content[:200].split())[:60]


def prompt_build(*, answer: Message) -> list[ChatTurn]:
    """Returns the conversation as the model is to see it before it writes `answer`.

    Chat templates want user and assistant in turns: an answer of which nothing came is left out, and the questions on
    both sides of it become one. A question that a guardrail blocked is left out with what stands in its answer's place:
    it is not to be heard, and would have whatever is asked next blocked, too.
    """
    earlier = answer.conversation.messages.filter(position__lt=answer.position).order_by("position")
    return _from_user(_turns(list(earlier)))


def draft_prompt_build(*, conversation: Conversation, text: str) -> list[ChatTurn] | None:
    """Returns what `prompt_build` will say once `text` is sent; None while an answer is being written."""
    messages = list(conversation.messages.order_by("position"))
    if messages and messages[-1].is_streaming:
        return None
    turns = _turns(messages)
    _append(turns, MessageRole.USER, text)
    return _from_user(turns)


def _turns(messages: Sequence[Message]) -> list[ChatTurn]:
    turns: list[ChatTurn] = []
    blocked = {message.position for message in messages if _was_question_blocked(message)}
    for message in messages:
        if message.content and message.position not in blocked and message.position + 1 not in blocked:
            _append(turns, message.role, message.content)
    return turns


def _append(turns: list[ChatTurn], role: str, content: str) -> None:
    if turns and turns[-1].role == role:
        content = f"{turns.pop().content}\n\n{content}"
    turns.append(ChatTurn(role, content))


def _from_user(turns: list[ChatTurn]) -> list[ChatTurn]:
    return turns[1:] if turns and turns[0].role == MessageRole.ASSISTANT else turns


def _was_question_blocked(answer: Message) -> bool:
    """Whether a guardrail blocked the question, by an error or by its replacement; what blocks an answer has tokens."""
    if answer.role != MessageRole.ASSISTANT:
        return False
    if answer.error_code == ContentFilterError.code:
        return True
    return answer.finish_reason == FinishReason.CONTENT_FILTER and not answer.usage.get("completion_tokens")
