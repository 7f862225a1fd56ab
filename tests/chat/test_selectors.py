"""Reads: pages, one way to a conversation, and what the model is given of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.chat.enums import MessageRole, MessageState
from apps.chat.errors import ConversationNotFoundError
from apps.chat.models import Conversation, Message
from apps.chat.selectors import (
    CONVERSATION_PAGE,
    MESSAGE_PAGE,
    Cursor,
    conversation_get,
    conversation_list,
    draft_prompt_build,
    message_get,
    message_list,
    prompt_build,
)
from apps.tenants.managers import UnscopedQueryError
from apps.tenants.models import Membership
from headrace_wire.errors import InvalidRequestError

AssertQueries = Callable[[int], AbstractContextManager[Any]]


def conversation_of(membership: Membership, *, title: str = "T", age_seconds: float = 0) -> Conversation:
    return Conversation.all_tenants.create(
        tenant=membership.tenant,
        user_id=membership.user_id,
        title=title,
        model="tiny",
        updated_at=timezone.now() - timedelta(seconds=age_seconds),
    )


def say(conversation: Conversation, *turns: tuple[MessageRole, str]) -> list[Message]:
    start = conversation.messages.count()
    return [
        conversation.messages.create(position=start + i, role=role, content=content)
        for i, (role, content) in enumerate(turns)
    ]


def test_list_is_paged_by_last_turn_in_one_query(
    membership: Membership, django_assert_num_queries: AssertQueries
) -> None:
    made = [conversation_of(membership, title=str(i), age_seconds=60 * i) for i in range(CONVERSATION_PAGE + 5)]
    with django_assert_num_queries(1):
        first = conversation_list(membership=membership)
    assert [row.pk for row in first.conversations] == [row.pk for row in made[:CONVERSATION_PAGE]]
    second = conversation_list(membership=membership, before=Cursor.parse(str(first.next)))
    assert [row.pk for row in second.conversations] == [row.pk for row in made[CONVERSATION_PAGE:]]
    assert second.next is None


def test_conversations_of_one_moment_are_on_one_page_each(membership: Membership) -> None:
    at = timezone.now()
    made = {conversation_of(membership).pk for _ in range(CONVERSATION_PAGE + 5)}
    Conversation.all_tenants.update(updated_at=at)
    first = conversation_list(membership=membership)
    second = conversation_list(membership=membership, before=first.next)
    seen = [row.pk for row in (*first.conversations, *second.conversations)]
    assert len(seen) == len(made)
    assert set(seen) == made


@pytest.mark.parametrize("text", ["", "x", "2026-01-01_x", "2026-01-01T00:00:00_7a0f6f2e5f8e4d3a9a510d8b0a3f9a10", "_"])
def test_cursor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        Cursor.parse(text)


def test_nobody_else_sees_a_conversation(
    membership: Membership, other_membership: Membership, foreign_membership: Membership
) -> None:
    mine = conversation_of(membership)
    assert conversation_get(membership=membership, conversation_id=mine.pk) == mine
    for stranger in (other_membership, foreign_membership):
        assert conversation_list(membership=stranger).conversations == []
        with pytest.raises(ConversationNotFoundError):
            conversation_get(membership=stranger, conversation_id=mine.pk)


def test_member_of_two_tenants_sees_each_ones_own(
    membership: Membership, foreign_membership: Membership, other_tenant: Any
) -> None:
    elsewhere = Membership.all_tenants.create(tenant=other_tenant, user_id=membership.user_id, role="member")
    mine = conversation_of(membership)
    with pytest.raises(ConversationNotFoundError):
        conversation_get(membership=elsewhere, conversation_id=mine.pk)
    assert conversation_list(membership=elsewhere).conversations == []


def test_unscoped_queries_are_refused() -> None:
    for model in (Conversation, Message):
        with pytest.raises(UnscopedQueryError):
            model.objects.all()


def test_message_of_another_conversation_is_not_found(membership: Membership) -> None:
    mine, other = conversation_of(membership), conversation_of(membership)
    (message,) = say(other, (MessageRole.USER, "hi"))
    with pytest.raises(ConversationNotFoundError):
        message_get(conversation=mine, message_id=message.pk)
    assert message_get(conversation=other, message_id=message.pk) == message


def test_messages_are_paged_from_the_end_in_one_query(
    membership: Membership, django_assert_num_queries: AssertQueries
) -> None:
    conversation = conversation_of(membership)
    say(conversation, *[(MessageRole.USER, str(i)) for i in range(MESSAGE_PAGE + 3)])
    with django_assert_num_queries(1):
        last = message_list(conversation=conversation)
    assert [m.position for m in last.messages] == list(range(3, MESSAGE_PAGE + 3))
    assert last.has_earlier
    first = message_list(conversation=conversation, before=3)
    assert [m.position for m in first.messages] == [0, 1, 2]
    assert not first.has_earlier


def test_prompt_alternates_whatever_failed(membership: Membership) -> None:
    conversation = conversation_of(membership)
    user, assistant = MessageRole.USER, MessageRole.ASSISTANT
    say(conversation, (user, "one"), (assistant, ""), (user, "two"), (assistant, "2"), (user, "three"))
    answer = conversation.messages.create(
        position=5,
        role=assistant,
        state=MessageState.STREAMING,
        stream_id="strm-x",
        started_at=timezone.now(),
    )
    turns = [(turn.role, turn.content) for turn in prompt_build(answer=answer)]
    assert turns == [("user", "one\n\ntwo"), ("assistant", "2"), ("user", "three")]


@pytest.mark.parametrize(
    ("blocked", "turns"),
    [
        ({"error_code": "content_filter"}, [("user", "three")]),
        ({"content": "No.", "finish_reason": "content_filter", "usage": {"completion_tokens": 0}}, [("user", "three")]),
        (
            {"content": "2 No.", "finish_reason": "content_filter", "usage": {"completion_tokens": 1}},
            [("user", "two"), ("assistant", "2 No."), ("user", "three")],
        ),
        ({"error_code": "engine_error"}, [("user", "two\n\nthree")]),
    ],
)
def test_question_that_was_blocked_is_not_asked_again(
    membership: Membership, blocked: dict[str, Any], turns: list[tuple[str, str]]
) -> None:
    conversation = conversation_of(membership)
    user, assistant = MessageRole.USER, MessageRole.ASSISTANT
    say(conversation, (user, "two"), (assistant, ""), (user, "three"))
    conversation.messages.filter(position=1).update(**blocked)
    answer = conversation.messages.create(
        position=3, role=assistant, state=MessageState.STREAMING, stream_id="strm-x", started_at=timezone.now()
    )
    assert [(turn.role, turn.content) for turn in prompt_build(answer=answer)] == turns
    conversation.messages.filter(position__gte=2).delete()
    draft = draft_prompt_build(conversation=conversation, text="three")
    assert draft is not None
    assert [(turn.role, turn.content) for turn in draft] == turns, "typed, it is seen as it will be when it is sent"
    say(conversation, (user, "three"))
    again = conversation.messages.get(position=1)
    assert [turn.content for turn in prompt_build(answer=again)] == ["two"], "written anew it is asked"
