"""How an answer gets from its stream into the database: by whoever comes first, the browser at its end or Celery.

The token log is the truth until then; both read it through `answer_collect`, which may run any number of times.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import structlog
from asgiref.sync import sync_to_async
from django.db import transaction
from django.utils import timezone

from apps.chat.enums import MessageState
from apps.chat.events import ConversationChange, conversation_changed
from apps.chat.models import Message
from headrace_wire.errors import HeadraceError, StreamGoneError
from headrace_wire.messages import AnyLogEntry, Delta, Ended, StreamState
from headrace_wire.token_log import TokenLog

logger = structlog.get_logger(__name__)

ADMISSION_GRACE = timedelta(seconds=30)
"""A stored answer whose stream has no log yet is being admitted; after this it never will be."""

EXPIRED = "This answer was not stored before its stream expired, or its request was lost. Ask again."

_STATES = {
    StreamState.FINISHED: MessageState.COMPLETE,
    StreamState.CANCELLED: MessageState.STOPPED,
    StreamState.FAILED: MessageState.FAILED,
    StreamState.REPLACED: MessageState.COMPLETE,
}


class Ending(NamedTuple):
    """What a stream left: its text, and how it ended."""

    state: MessageState
    content: str
    finish_reason: str
    usage: dict[str, Any]
    error_code: str = ""
    error: str = ""


async def answer_collect(*, token_log: TokenLog, message: Message) -> Message:
    """Stores the answer if its stream has ended; returns the message as it is now.

    Idempotent, safe to run at the same time in several processes.

    Raises:
        redis.exceptions.RedisError: The log could not be read; nothing was changed.
    """
    if not message.is_streaming or message.stream_id is None:
        return message
    tail = await token_log.tail(message.stream_id)
    if isinstance(tail, Ended):
        # None: it expired between the two reads.
        ending = ending_of(await token_log.read(message.stream_id))
    elif tail is None and message.started_at and timezone.now() - message.started_at > ADMISSION_GRACE:
        ending = ending_of(None)
    else:
        return message
    return await sync_to_async(answer_store)(message_id=message.pk, stream_id=message.stream_id, ending=ending)


def ending_of(entries: Sequence[AnyLogEntry] | None) -> Ending:
    """Returns what an ended stream's log says; None stands for a log that has expired."""
    end = entries[-1] if entries else None
    if not entries or not isinstance(end, Ended):
        return Ending(MessageState.FAILED, "", "", {}, StreamGoneError.code, EXPIRED)
    content = "".join(entry.text for entry in entries if isinstance(entry, Delta))
    if end.replacement is not None:
        content = end.replacement.applied_to(content)
    return Ending(
        state=_STATES[end.state],
        content=content.replace("\x00", "\ufffd"),
        finish_reason=end.finish_reason.value,
        usage=msgspec.to_builtins(
            {
                name: getattr(end.usage, name) for name in end.usage.__struct_fields__
            }  # by name, though the wire has rows
        ),
        error_code=end.error.code if end.error else "",
        error=end.error.message if end.error else "",
    )


@transaction.atomic
def answer_store(*, message_id: UUID, stream_id: str, ending: Ending) -> Message:
    """Writes an ending into the message that waits for this stream; changes nothing where that is done or replaced."""
    waiting = Message.all_tenants.select_for_update(of=("self",)).select_related("conversation")
    message = waiting.get(pk=message_id)
    if not message.is_streaming or message.stream_id != stream_id:
        return message
    message.state, message.content, message.finish_reason = ending.state, ending.content, ending.finish_reason
    message.usage, message.error_code, message.error = ending.usage, ending.error_code, ending.error
    message.ended_at = timezone.now()
    message.save()
    conversation_changed(message.conversation, ConversationChange.ANSWER)
    return message


def answer_fail(*, answer: Message, error: HeadraceError) -> Message:
    """Marks an answer whose stream was refused; its question stands, and can be tried again."""
    ending = Ending(MessageState.FAILED, "", "", {}, error.code, error.message)
    return answer_store(message_id=answer.pk, stream_id=answer.stream_id or "", ending=ending)
