"""Conversations that are kept here, for frames that name one instead of bringing its messages.

The chat, which is above this app, registers how they are read.
"""

from collections.abc import Awaitable, Callable

from apps.streams.config_view import Caller
from headrace_wire.errors import InvalidRequestError
from headrace_wire.messages import ChatTurn

Read = Callable[[Caller, str, str], Awaitable[list[ChatTurn] | None]]

_reads: list[Read] = []


def conversations_register(read: Read) -> None:
    """Have `read` asked for the turns of a caller's conversation with a text at its end.

    It returns None while nothing can be said, because an answer is being written.
    """
    _reads[:] = [read]


async def conversation_turns(caller: Caller, conversation: str, text: str) -> list[ChatTurn] | None:
    """Return the turns of one of the caller's own conversations; an empty name stands for a new one.

    Raises:
        InvalidRequestError: the caller has no conversations here, or the name is none.
        HeadraceError: there is no such conversation, or it is somebody else's.
    """
    if caller.api_key is not None or not _reads:
        raise InvalidRequestError("Only the chat has conversations; send `messages`.", param="conversation")
    return await _reads[0](caller, conversation, text)
