"""Writes: turns that are stored once, answers that are stored once, conversations that follow in other tabs."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import IntegrityError, transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from apps.chat.enums import MessageRole, MessageState
from apps.chat.errors import AnswerInProgressError, ConversationFullError, ConversationNotFoundError
from apps.chat.models import TITLE_LENGTH, Conversation, Message
from apps.chat.services import turns
from apps.chat.services.answers import Ending, answer_store, ending_of
from apps.chat.services.conversations import (
    conversation_delete,
    conversation_rename,
    conversations_expire,
    title_from,
)
from apps.chat.services.turns import TEXT_LENGTH, Turn, answer_restart, turn_create
from apps.tenants.models import Membership
from apps.tenants.ui_events import user_group
from headrace_wire.errors import InvalidRequestError
from headrace_wire.messages import (
    AnyLogEntry,
    ChatTurn,
    Delta,
    Ended,
    FinishReason,
    Opened,
    Started,
    StreamError,
    StreamState,
    Timings,
    Usage,
)

DONE = Ending(MessageState.COMPLETE, "hello", "stop", {"prompt_tokens": 3, "completion_tokens": 1})


def send(membership: Membership, text: str = "hi", **changes: Any) -> Turn:
    return turn_create(
        membership=membership,
        **{"conversation_id": uuid4(), "turn_id": uuid4(), "text": text, "model": "tiny", **changes},
    )


def finish(answer: Message, ending: Ending = DONE) -> Message:
    return answer_store(message_id=answer.pk, stream_id=answer.stream_id or "", ending=ending)


# ---- turns


def test_turn_makes_its_conversation_and_a_place_for_the_answer(membership: Membership) -> None:
    turn = send(membership, "What is a headrace?")
    conversation = Conversation.objects.for_tenant(membership.tenant).get()
    assert (conversation.title, conversation.model, conversation.user_id) == (
        "What is a headrace?",
        "tiny",
        membership.user_id,
    )
    assert (turn.question.role, turn.question.content, turn.question.position) == ("user", "What is a headrace?", 0)
    assert (turn.answer.state, turn.answer.position) == (MessageState.STREAMING, 1)
    assert turn.answer.stream_id
    assert turn.answer.stream_id.startswith("strm-")


def test_turn_sent_twice_is_there_once(membership: Membership) -> None:
    ids: dict[str, Any] = {"conversation_id": uuid4(), "turn_id": uuid4()}
    first, second = send(membership, **ids), send(membership, **ids)
    assert (first.is_new, second.is_new) == (True, False)
    assert (second.question, second.answer) == (first.question, first.answer)
    assert Message.all_tenants.count() == 2


def test_turns_of_one_conversation_follow_each_other(membership: Membership) -> None:
    conversation_id = uuid4()
    finish(send(membership, conversation_id=conversation_id).answer)
    second = send(membership, conversation_id=conversation_id, model="other")
    assert second.question.position == 2
    assert Conversation.all_tenants.get().model == "other"


def test_turn_waits_for_the_answer_before(membership: Membership) -> None:
    conversation_id = uuid4()
    send(membership, conversation_id=conversation_id)
    with pytest.raises(AnswerInProgressError):
        send(membership, conversation_id=conversation_id)
    assert Message.all_tenants.count() == 2


def test_database_holds_one_answer_at_a_time(membership: Membership) -> None:
    conversation = send(membership).answer.conversation
    with pytest.raises(IntegrityError), transaction.atomic():
        conversation.messages.create(
            position=7,
            role=MessageRole.ASSISTANT,
            state=MessageState.STREAMING,
            stream_id="strm-y",
            started_at=timezone.now(),
        )


@pytest.mark.parametrize("text", ["", "  \n ", "\x00", "x" * (TEXT_LENGTH + 1)])
def test_text_that_says_nothing_or_too_much_is_refused(membership: Membership, text: str) -> None:
    with pytest.raises(InvalidRequestError):
        send(membership, text)
    assert not Conversation.all_tenants.exists()


def test_conversation_has_an_end(membership: Membership, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MESSAGE_LIMIT", 2)
    conversation_id = uuid4()
    finish(send(membership, conversation_id=conversation_id).answer)
    with pytest.raises(ConversationFullError):
        send(membership, conversation_id=conversation_id)


def test_nobody_writes_into_anothers_conversation(
    membership: Membership, other_membership: Membership, foreign_membership: Membership
) -> None:
    turn = send(membership)
    finish(turn.answer)
    mine = turn.answer.conversation_id
    for stranger in (other_membership, foreign_membership):
        with pytest.raises(ConversationNotFoundError):
            send(stranger, conversation_id=mine)
        with pytest.raises(ConversationNotFoundError):
            send(stranger, turn_id=turn.question.pk)
        with pytest.raises(ConversationNotFoundError):
            answer_restart(membership=stranger, conversation_id=mine, message_id=turn.answer.pk, model="tiny")
        with pytest.raises(ConversationNotFoundError):
            conversation_rename(membership=stranger, conversation_id=mine, title="stolen")
        with pytest.raises(ConversationNotFoundError):
            conversation_delete(membership=stranger, conversation_id=mine)
    assert Message.all_tenants.count() == 2
    assert Conversation.all_tenants.get().title == "hi"


def test_refused_turn_leaves_no_empty_conversation(membership: Membership, foreign_membership: Membership) -> None:
    theirs = send(membership).question.pk
    with pytest.raises(ConversationNotFoundError):
        send(foreign_membership, turn_id=theirs)
    assert not Conversation.objects.for_tenant(foreign_membership.tenant).exists()


# ---- answers written anew


def test_last_answer_gets_a_new_stream(membership: Membership) -> None:
    turn = send(membership)
    old = turn.answer.stream_id
    finish(turn.answer, Ending(MessageState.FAILED, "par", "error", {}, "engine_error", "gone"))
    answer = answer_restart(
        membership=membership, conversation_id=turn.answer.conversation_id, message_id=turn.answer.pk, model="other"
    )
    stored = Message.all_tenants.get(pk=answer.pk)
    assert stored.stream_id != old
    assert (stored.state, stored.content, stored.error, stored.model) == (MessageState.STREAMING, "", "", "other")
    # The old stream's end comes late, and changes nothing.
    answer_store(message_id=answer.pk, stream_id=old or "", ending=DONE)
    assert Message.all_tenants.get(pk=answer.pk).is_streaming


def test_only_the_last_ended_answer_is_written_anew(membership: Membership) -> None:
    conversation_id = uuid4()
    first = send(membership, conversation_id=conversation_id)
    with pytest.raises(AnswerInProgressError):
        answer_restart(membership=membership, conversation_id=conversation_id, message_id=first.answer.pk, model="tiny")
    finish(first.answer)
    finish(send(membership, conversation_id=conversation_id).answer)
    for message in (first.answer, first.question):
        with pytest.raises(InvalidRequestError):
            answer_restart(membership=membership, conversation_id=conversation_id, message_id=message.pk, model="tiny")


# ---- answers stored


def ended(seq: int, state: StreamState, reason: FinishReason, error: StreamError | None = None) -> Ended:
    return Ended("strm", 2, seq, state, reason, None, Usage(4, seq - 1, 2), Timings(), error)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (ended(4, StreamState.FINISHED, FinishReason.STOP), MessageState.COMPLETE),
        (ended(4, StreamState.FINISHED, FinishReason.LENGTH), MessageState.COMPLETE),
        (ended(4, StreamState.CANCELLED, FinishReason.ABORT), MessageState.STOPPED),
        (
            ended(4, StreamState.FAILED, FinishReason.ERROR, StreamError("engine_error", "It broke.")),
            MessageState.FAILED,
        ),
    ],
)
def test_ending_is_the_logs_text_and_end(end: Ended, state: MessageState) -> None:
    log: list[AnyLogEntry] = [
        Opened("strm", 1, 0),
        Started("strm", 2, 0, "w", 1),
        Delta("strm", 2, 1, 1, "a 🌊"),
        Delta("strm", 2, 3, 2, ""),
    ]
    ending = ending_of([*log, end])
    assert (ending.state, ending.content, ending.finish_reason) == (state, "a 🌊", end.finish_reason.value)
    assert ending.usage == {"prompt_tokens": 4, "completion_tokens": 3, "cached_tokens": 2, "reasoning_tokens": 0}
    assert ending.error == (end.error.message if end.error else "")


@pytest.mark.parametrize("log", [None, [], [Opened("strm", 1, 0)]])
def test_log_without_an_end_is_a_failure_that_says_so(log: list[Any] | None) -> None:
    ending = ending_of(log)
    assert (ending.state, ending.error_code) == (MessageState.FAILED, "stream_expired")
    assert "Ask again" in ending.error


def test_answer_is_stored_once(membership: Membership) -> None:
    answer = send(membership).answer
    first = finish(answer)
    again = finish(answer, Ending(MessageState.FAILED, "", "", {}, "stream_expired", "late"))
    assert (again.state, again.content, again.ended_at) == (MessageState.COMPLETE, "hello", first.ended_at)


# ---- conversations


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("hello", "hello"),
        ("\n\n  first   line \nsecond", "first line"),
        ("word " * 40, ("word " * 15).strip() + "…"),
        ("x" * 200, "x" * (TITLE_LENGTH - 1) + "…"),
    ],
)
def test_title_comes_from_the_first_line(text: str, title: str) -> None:
    assert title_from(text) == title


@given(st.text(max_size=400))
def test_title_always_fits(text: str) -> None:
    assert 0 < len(title_from(text)) <= TITLE_LENGTH


@pytest.mark.parametrize("title", ["", "   ", " \0 ", "x" * (TITLE_LENGTH + 1)])
def test_title_is_neither_empty_nor_long(membership: Membership, title: str) -> None:
    conversation_id = send(membership).answer.conversation_id
    with pytest.raises(InvalidRequestError):
        conversation_rename(membership=membership, conversation_id=conversation_id, title=title)


def test_deleting_names_the_streams_that_nobody_wants(membership: Membership) -> None:
    answer = send(membership).answer
    streams = conversation_delete(membership=membership, conversation_id=answer.conversation_id)
    assert streams == [answer.stream_id]
    assert not Message.all_tenants.exists()


def test_conversations_go_when_their_tenants_retention_ends(
    membership: Membership, foreign_membership: Membership
) -> None:
    for member, days in ((membership, 31), (membership, 29), (foreign_membership, 31)):
        conversation = send(member).answer.conversation
        conversation.updated_at = timezone.now() - timedelta(days=days)
        conversation.save()
    foreign_membership.tenant.retention_days = 60
    foreign_membership.tenant.save()
    assert conversations_expire() == 1
    assert Conversation.all_tenants.count() == 2


@pytest.mark.parametrize("change", ["turn", "answer", "renamed", "deleted"])
def test_other_tabs_are_told_after_the_commit(
    membership: Membership, change: str, django_capture_on_commit_callbacks: Any
) -> None:
    answer = send(membership).answer
    conversation_id = answer.conversation_id
    layer = get_channel_layer()
    assert layer is not None
    async_to_sync(layer.group_add)(user_group(membership.user_id), "tab")
    with django_capture_on_commit_callbacks(execute=True):
        if change == "turn":
            finish(answer)
            send(membership, conversation_id=conversation_id)
        elif change == "answer":
            finish(answer)
        elif change == "renamed":
            conversation_rename(membership=membership, conversation_id=conversation_id, title="New")
        else:
            conversation_delete(membership=membership, conversation_id=conversation_id)
    events = [async_to_sync(layer.receive)("tab") for _ in range(2 if change == "turn" else 1)]
    assert events[-1]["event"] == "conversation.changed"
    assert events[-1]["data"]["change"] == change
    assert events[-1]["data"]["conversation"]["id"] == str(conversation_id)


def test_later_half_of_a_conversation_begins_with_the_user() -> None:
    roles = ["user", "assistant"]
    for length in range(1, 30, 2):
        conversation = [ChatTurn(roles[i % 2], str(i)) for i in range(length)]
        kept = turns._later_half(conversation)
        assert kept[0].role == "user"
        assert kept[-1] == conversation[-1]
        assert len(kept) < length or length == 1
