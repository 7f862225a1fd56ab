"""What a member is typing, as the model will see it with the conversation before it."""

from uuid import UUID

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError

from apps.chat.selectors import conversation_get, draft_prompt_build
from apps.chat.services.turns import text_normalise
from apps.streams.config_view import Caller
from apps.tenants.selectors import membership_find
from headrace_wire.errors import InvalidRequestError, PermissionDeniedError
from headrace_wire.messages import ChatTurn

logger = structlog.get_logger(__name__)


async def draft_turns(caller: Caller, conversation: str, text: str) -> list[ChatTurn] | None:
    """Returns the prompt so far; None while an answer is written that will be part of it, or without the database.

    Raises:
        InvalidRequestError: The name is none.
        PermissionDeniedError: The caller is not a member any more.
        ConversationNotFoundError: There is no such conversation, or it is somebody else's.
    """
    text = text_normalise(text).lstrip()
    if not conversation:
        return [ChatTurn("user", text)]
    try:
        conversation_id = UUID(conversation)
    except ValueError as error:
        raise InvalidRequestError("`conversation` is not the id of one.", param="conversation") from error
    try:
        turns: list[ChatTurn] | None = await database_sync_to_async(_read)(caller, conversation_id, text)
    except DatabaseError as error:
        logger.info("draft_without_database", error=str(error))
        return None
    return turns


def _read(caller: Caller, conversation_id: UUID, text: str) -> list[ChatTurn] | None:
    user_id = caller.user_id
    membership = membership_find(tenant_id=caller.tenant.id, user_id=user_id) if user_id else None
    if membership is None:
        raise PermissionDeniedError("You are not a member of this workspace any more.")
    conversation = conversation_get(membership=membership, conversation_id=conversation_id)
    return draft_prompt_build(conversation=conversation, text=text)
